"""What a wheel takes along: every file of the three rooms, by the patterns of setup.py."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
TREE = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
LEFT_OUT = {".py", ".md"}


def rooms() -> dict[str, Path]:
    """Package -> folder, from setup.py."""
    (value,) = [n.value for n in TREE.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "ROOMS"]
    return {package: ROOT / folder for package, folder in ast.literal_eval(value).items()}


def patterns() -> dict[str, list[str]]:
    """Package -> globs of its data files, from setup.py."""
    keywords = [k for node in ast.walk(TREE) if isinstance(node, ast.Call) for k in node.keywords]
    (value,) = [keyword.value for keyword in keywords if keyword.arg == "package_data"]
    return ast.literal_eval(value)


def test_every_data_file_of_the_rooms_is_in_the_wheel():
    for package, folder in rooms().items():
        files = {f for f in folder.rglob("*") if f.is_file() and f.suffix not in LEFT_OUT}
        files = {f for f in files if f.parent.name != "__pycache__"}  # a Python that was killed leaves parts there
        taken = {file for pattern in patterns()[package] for file in folder.glob(pattern)}
        assert files and sorted(files - taken) == [], package


def test_every_folder_with_python_in_it_is_a_package():
    for package, folder in rooms().items():
        without = {f.parent for f in folder.rglob("*.py") if not (f.parent / "__init__.py").is_file()}
        assert sorted(without) == [], package


def test_the_kernels_ship_as_spirv_for_users_without_a_compiler():
    taken = {file.name for pattern in patterns()["xpu_moe.esimd"] for file in rooms()["xpu_moe.esimd"].glob(pattern)}
    assert {"moe_u4_f16_g128.spv", "route_sigmoid_topk.spv", "manifest.json", "library.cpp", "torch_ops.hpp"} <= taken
