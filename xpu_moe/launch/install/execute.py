"""Run the steps of an installation; make an environment once, find it afterwards, never use half of one.

An environment of ours holds `xpu_moe.json` with its state and what decides its content (content.py). A folder without
that file is somebody else's and is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from xpu_moe.env import read
from xpu_moe.launch import tool
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import ENVIRONMENT, LaunchError
from xpu_moe.launch.install import content, wheels
from xpu_moe.launch.install.steps import Step

STATE = "xpu_moe.json"
# of an environment: nothing to trust, whole but for this package, whole
MAKING, PACKAGE, READY = "making", "package", "ready"


def ensure(plan: Sequence[Step], project: Path, venv: Path, console: Console) -> Path:
    """The environment's Python. Installs where it is missing, half made or made from another plan; where only what is
    written down of this package has changed, installs that alone."""
    wanted = content.wanted(plan, project)
    python = venv / "bin" / "python"
    if not _lacking(venv, wanted):
        return python
    with _locked(project, console):
        lacking, found = _lacking(venv, wanted), state(venv)
        if not lacking:  # another process made it while we waited
            return python
        if found is None and venv.exists():
            raise LaunchError(
                ENVIRONMENT, f"{venv}: exists and is not ours; activate it (where it holds vLLM) or move it away"
            )
        if lacking == "this package":
            _renew_package(plan, project, venv, wanted, console)
            return python
        if found is None:  # else what is there makes room first
            _room_for(plan, venv)
        why = "making" if found is None else "remaking half-made" if found["state"] == MAKING else "renewing"
        console.say(f"installing: {why} {venv}")
        run(plan, project, venv, console)
        _write(venv, {"state": READY, "content": wanted.as_json()})
    return python


def _room_for(plan: Sequence[Step], venv: Path) -> None:
    """LaunchError(ENVIRONMENT) where the disk cannot hold it: unpacked, the wheels take twice their size and more."""
    wanted, free = 2e6 * sum(step.megabytes for step in plan), shutil.disk_usage(venv.parent).free
    if free < wanted:
        raise LaunchError(
            ENVIRONMENT,
            f"{venv}: {free / 1e9:.1f} GB are free on this disk, at least {wanted / 1e9:.1f} GB are wanted; make room, "
            "or clone to a larger disk",
        )


def _lacking(venv: Path, wanted: content.Content) -> str:
    """What has to be installed into `venv`: "everything", "this package", or ""."""
    found = state(venv)
    have = content.made(found)
    if found is None or have is None or found["state"] not in (READY, PACKAGE) or not content.holds(have, wanted):
        return "everything"
    if not (venv / "bin" / "python").exists():  # it was taken away since
        return "everything"
    return "" if found["state"] == READY and have.package == wanted.package else "this package"


def _renew_package(
    plan: Sequence[Step], project: Path, venv: Path, wanted: content.Content, console: Console
) -> None:  # fmt: skip
    """The last step alone, in a whole environment; a stop leaves state `package` behind."""
    have = content.made(state(venv)) or wanted
    with _told(venv):
        _write(venv, {"state": PACKAGE, "content": have.as_json()})
    console.say(f"installing: this package anew in {venv}")
    _run_all([step for step in plan if step.package], project, console)
    _write(venv, {"state": READY, "content": replace(have, package=wanted.package).as_json()})


def state(venv: Path) -> dict | None:
    """What an environment of ours says of itself; None where there is none of ours."""
    try:
        found = json.loads((venv / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "state" in found else None


def run(plan: Sequence[Step], project: Path, venv: Path, console: Console) -> None:
    """Every step in order; LaunchError(ENVIRONMENT) with pip's last lines. A stop leaves state `making` behind."""
    with _told(venv):
        _begin(venv)
    _run_all(plan, project, console)
    shutil.rmtree(venv / "install" / "wheel", ignore_errors=True)


@contextlib.contextmanager
def _told(venv: Path) -> Iterator[None]:
    """A folder that cannot be written to, as a LaunchError."""
    try:
        yield
    except OSError as error:
        fixed = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        advice = "; clone to where you may write, or activate an environment that holds vLLM" if fixed else ""
        raise LaunchError(ENVIRONMENT, f"{venv}: {error.strerror}{advice}") from None


def _run_all(plan: Sequence[Step], project: Path, console: Console) -> None:
    for number, step in enumerate(plan, 1):
        argv = chosen(step)
        size = f", about {step.megabytes} MB" if step.megabytes else ""
        console.say(f"installing {number}/{len(plan)}: {step.title}{size}")
        begun = time.monotonic()
        _run(step, argv, project, console)
        if time.monotonic() - begun > 5:
            console.say(f"installing {number}/{len(plan)}: done in {time.monotonic() - begun:.0f} s")


def _begin(venv: Path) -> None:
    """An empty `venv` in state `making`. Whenever this is cut short, what is there says that it is ours."""
    if not venv.exists():
        fresh = venv.with_name(f"{venv.name}.making")  # renamed once it has its state
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        _write(fresh, {"state": MAKING})
        os.rename(fresh, venv)
    _write(venv, {"state": MAKING})
    for entry in venv.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != STATE:
            entry.unlink()
    (venv / "install").mkdir()


def chosen(step: Step) -> tuple[str, ...]:
    """The command of a step: `otherwise` where its report shows a CUDA build of torch."""
    if step.otherwise and step.report and wheels.is_cuda_build(wheels.torch_in(step.report)):
        return step.otherwise
    return step.argv


def run_one(step: Step, project: Path, console: Console) -> None:
    """One step alone; LaunchError(ENVIRONMENT) with pip's meaning in a line."""
    _run(step, chosen(step), project, console)


def _run(step: Step, argv: Sequence[str], project: Path, console: Console) -> None:
    environ = {**read.snapshot(), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    environ.pop("PYTHONHOME", None)
    # The helper of the wheels is run from this checkout: the package itself is installed last.
    environ["PYTHONPATH"] = str(project) if "xpu_moe.launch.install.wheels" in argv else ""
    try:
        code, output = tool.run(argv, environ)
    except OSError as error:
        raise LaunchError(ENVIRONMENT, f"{step.title}: {error.strerror}") from None
    if code and step.optional:
        console.say(f"  {step.title}: did not work, going on without")
    elif code:
        raise LaunchError(ENVIRONMENT, f"{step.title}: {explain(output)}")


# (what pip says, what it means)
_MEANINGS = (
    (r"No space left on device", "the disk is full; free some space and run the same command again"),
    (r"No matching distribution found for (\S+)", "there is no {0} for this Python and machine"),
    (
        r"Failed to establish a new connection|Temporary failure in name res",
        "the package index is unreachable",
    ),
    (r"ensurepip is not available", "this Python has no venv module; on Debian: apt install python3-venv"),
)


def explain(output: str) -> str:
    """pip's failure in one line."""
    for pattern, meaning in _MEANINGS:
        match = re.search(pattern, output)
        if match:
            python = f" (Python {sys.version_info.major}.{sys.version_info.minor})" if match.groups() else ""
            return meaning.format(*match.groups()) + python
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["no output"])[-1][:300]


def _write(venv: Path, content: dict) -> None:
    temporary = venv / f".{STATE}.new"
    temporary.write_text(json.dumps(content), encoding="utf-8")
    os.replace(temporary, venv / STATE)


@contextlib.contextmanager
def _locked(project: Path, console: Console) -> Iterator[None]:
    handle = os.open(project, os.O_RDONLY)  # the checkout's own folder is the lock: no file is left behind
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.say("installing: waiting for another run that installs into this checkout")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
