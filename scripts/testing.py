"""`scripts/test.sh`: the test environment, lint, types, then pytest by tier. Standard library only.

Exit codes: 0 all passed, 1 something failed, 2 usage, 3 the environment could not be made, 130 interrupted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from xpu_moe import streams
from xpu_moe.env import read
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import INTERRUPTED, USAGE, Interrupted, LaunchError
from xpu_moe.launch.install import execute, interpreters, recipes, steps
from xpu_moe.launch.run import interruptible

# tier -> pytest's -m expression
TIERS = {"fast": "not slow and not soak", "default": "not soak", "all": ""}
ROOMS = {"cuda": "cuda", "esimd": "esimd"}


def run(argv: Sequence[str], root: Path) -> int:
    """The whole of scripts/test.sh; the exit code."""
    own, extra = (
        (list(argv), []) if "--" not in argv else (list(argv[: argv.index("--")]), list(argv)[argv.index("--") + 1 :])
    )
    streams.prepare()
    tier = own[0] if own else "default"
    if len(own) > 1 or tier not in TIERS:
        wrong = f"got {' '.join(own)!r}, wanted one of {', '.join(TIERS)} (pytest's arguments after --)"
        return streams.refuse("test.sh", wrong, as_json=False, code=USAGE)
    console = Console()
    try:
        with interruptible():
            python = environment(root, console)
            return check(python, root, tier, extra, console)
    except LaunchError as error:
        console.plain(f"test.sh: {error}")
        return error.code
    except Interrupted as name:
        console.plain(f"test.sh: {name}: stopped")
        return INTERRUPTED


def environment(root: Path, console: Console) -> Path:
    """The Python of `.venv-test`: the CPU packages and the test tools, whatever cards this machine has."""
    recipe = recipes.RECIPES["cpu"]
    venv = root / ".venv-test"
    plan = steps.steps(recipe, root, venv, interpreters.for_recipe(recipe), extras=("test",))
    return execute.ensure(plan, root, venv, console)


def check(python: Path, root: Path, tier: str, extra: list[str], console: Console) -> int:
    """Lint, types and tests; all of them run even where one fails. pytest comes last."""
    tool = [str(python), "-P", "-m"]
    typed = typed_view(root)
    # what, command, where
    commands = [] if extra else [
        ("lint", [*tool, "ruff", "check", "."], root),
        ("format", [*tool, "ruff", "format", "--check", "."], root),
        ("types", [*tool, "mypy", "--config-file", str(root / "pyproject.toml"), "-p", "xpu_moe"], typed),
    ]  # fmt: skip
    mark = ["-m", TIERS[tier]] if TIERS[tier] else []
    commands.append(("tests", [str(python), "-m", "pytest", "-q", *mark, *extra], root))
    failed = []
    for what, command, folder in commands:
        begun = time.monotonic()
        console.say(f"{what}: {' '.join(command[1:])}")
        if _run(command, folder, python):
            failed.append(what)
        if what != "tests":
            console.say(f"{what}: {'FAILED' if what in failed else 'ok'} in {time.monotonic() - begun:.0f} s")
    if failed:
        console.plain(f"test.sh {tier}: failed: {', '.join(failed)}")
    return 1 if failed else 0


def typed_view(root: Path) -> Path:
    """A folder in build/ in which the three rooms lie as they are installed: links, for the type checker."""
    folder = root / "build" / "types"
    package = folder / "xpu_moe"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    for entry in (root / "xpu_moe").iterdir():
        if entry.name != "__pycache__":
            (package / entry.name).symlink_to(entry)
    for room, source in ROOMS.items():
        (package / room).symlink_to(root / source)
    return folder


def _run(command: list[str], folder: Path, python: Path) -> int:
    environ = read.snapshot()
    environ["PATH"] = f"{python.parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    environ["VIRTUAL_ENV"] = str(python.parents[1])
    environ["MYPY_CACHE_DIR"] = str(folder.parent / "mypy") if folder.name == "types" else ""
    child = subprocess.Popen(command, cwd=folder, env={k: v for k, v in environ.items() if v}, stdin=subprocess.DEVNULL)
    try:
        return child.wait()
    except BaseException:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise
