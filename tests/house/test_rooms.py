"""Who may enter which room: measured from the imports of the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {"xpu_moe": "xpu_moe", "esimd": "xpu_moe.esimd", "cuda": "xpu_moe.cuda"}


def modules() -> dict[str, Path]:
    found = {}
    for folder, package in ROOMS.items():
        for file in (ROOT / folder).rglob("*.py"):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = file
    return found


def imports(file: Path, top_level: bool = False) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = tree.body if top_level else ast.walk(tree)
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def under(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def test_the_device_rooms_never_import_each_other():
    for module, file in modules().items():
        for mine, other in (("xpu_moe.cuda", "xpu_moe.esimd"), ("xpu_moe.esimd", "xpu_moe.cuda")):
            if under(module, mine):
                assert not [name for name in imports(file) if under(name, other)], module


def test_only_the_contract_names_the_device_rooms_for_dispatch():
    allowed = re.compile(r"xpu_moe\.(probe|bench|serving)\b")  # measuring tools may reach into a room by choice
    for module, file in modules().items():
        if not under(module, "xpu_moe.cuda") and not under(module, "xpu_moe.esimd") and not allowed.match(module):
            bad = [name for name in imports(file) if under(name, "xpu_moe.cuda") or under(name, "xpu_moe.esimd")]
            assert not bad, (module, bad)


def test_only_serving_imports_vllm():
    for module, file in modules().items():
        if not under(module, "xpu_moe.serving"):
            bad = [name for name in imports(file) if under(name, "vllm")]
            assert not bad, (module, bad)


LOWER_ROOMS = {
    "xpu_moe.env": ("ops", "comm", "formats", "doctor", "plan", "launch", "serving", "probe", "bench", "cpu"),
    "xpu_moe.device": ("ops", "comm", "formats", "doctor", "plan", "launch", "serving", "probe", "bench", "cpu"),
    "xpu_moe.formats": ("ops", "comm", "doctor", "plan", "launch", "serving", "probe", "bench"),
    "xpu_moe.ops": ("doctor", "plan", "launch", "serving", "probe", "bench"),
    "xpu_moe.comm": ("doctor", "plan", "launch", "serving", "bench"),
    "xpu_moe.plan": ("launch", "serving", "bench"),
    "xpu_moe.doctor": ("launch", "serving", "bench"),
    "xpu_moe.demo": ("doctor", "plan", "launch", "serving", "probe", "bench"),
}


@pytest.mark.parametrize("room", LOWER_ROOMS)
def test_arrows_point_down(room):
    for module, file in modules().items():
        if under(module, room):
            above = [name for name in imports(file) for upper in LOWER_ROOMS[room] if under(name, f"xpu_moe.{upper}")]
            assert not above, (module, above)


def test_the_probes_take_from_bench_only_how_it_times():
    taken = {
        (module, name)
        for module, file in modules().items()
        if under(module, "xpu_moe.probe")
        for name in imports(file)
        if under(name, "xpu_moe.bench") and name != "xpu_moe.bench"
    }
    assert taken == {("xpu_moe.probe.moe_call", f"xpu_moe.bench.{name}") for name in ("ceilings", "timing")}


def test_the_environment_is_read_in_one_module_only():
    reading = re.compile(r"os\.environ|os\.getenv|\bgetenv\(|from os import .*environ")
    for module, file in modules().items():
        if module != "xpu_moe.env.read":
            lines = [
                f"{number}: {line.strip()}"
                for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
                if reading.search(line) and not line.lstrip().startswith("#")
            ]
            assert not lines, (module, lines)


@pytest.mark.parametrize("room", ("xpu_moe.doctor", "xpu_moe.plan", "xpu_moe.env", "xpu_moe.launch"))
def test_rooms_that_work_without_torch_do_not_import_it_at_the_top(room):
    for module, file in modules().items():
        if under(module, room):
            assert not [name for name in imports(file, top_level=True) if under(name, "torch")], module


def test_no_circle_between_the_modules_of_the_house():
    known = modules()
    graph = {
        # a package that collects its own files names itself: no circle
        module: {name for name in imports(file, top_level=True) if name in known and name != module}
        for module, file in known.items()
    }
    state: dict[str, int] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        state[module] = 1
        for name in sorted(graph[module]):
            assert state.get(name) != 1, f"circle: {' -> '.join((*path, module, name))}"
            if name not in state:
                visit(name, (*path, module))
        state[module] = 2

    for module in sorted(graph):
        if module not in state:
            visit(module, ())
