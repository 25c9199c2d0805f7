"""Tool environments: virtual environments in the cache, keyed by what is pinned in them.

A compiler or a runtime that is needed now and then (the SPIR-V compiler, oneCCL for CPU ranks, Triton's interpreter)
must not enter the serving environment. `ensure` makes it once and finds it afterwards; a half-made one is never found.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from xpu_moe import cache, streams
from xpu_moe.env import read

_READY = ".ready"


class ToolEnvironmentError(RuntimeError):
    """The environment could not be made; the message ends with pip's last lines."""


def ensure(name: str, requirements: Sequence[str], *, no_deps: bool = False, python: str | None = None) -> Path:
    """The root of a virtual environment that holds `requirements` (pinned `package==version` strings).

    Made on the first call (progress on stderr), found by later ones. `no_deps` installs just what is named. Raises
    ToolEnvironmentError.
    """
    interpreter = python or sys.executable
    version = f"{sys.version_info.major}.{sys.version_info.minor}" if python is None else python
    key = hashlib.sha256("\n".join([version, str(no_deps), *sorted(requirements)]).encode()).hexdigest()[:12]
    root = cache.folder("envs") / f"{name}-{key}"
    if (root / _READY).exists():
        return root
    with _locked(root.with_suffix(".lock")):
        if (root / _READY).exists():
            return root
        shutil.rmtree(root, ignore_errors=True)
        streams.warn(f"xpu_moe: making the {name} environment ({', '.join(requirements)}) in {root}")
        _run([interpreter, "-m", "venv", str(root)], name)
        flags = ["--no-deps"] if no_deps else []
        _run([str(root / "bin" / "python"), "-m", "pip", "install", "-q", *flags, *requirements], name)
        (root / _READY).touch()
    return root


def overlay(name: str, requirements: Sequence[str]) -> Path:
    """A folder for PYTHONPATH that adds `requirements` (installed without their needs) to the running environment.

    For packages that the serving environment must not hold (Triton on a CPU changes which model runner vLLM takes)
    but that want its torch. Made once, found afterwards. Raises ToolEnvironmentError.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256("\n".join([version, *sorted(requirements)]).encode()).hexdigest()[:12]
    root = cache.folder("envs") / f"{name}-{key}"
    with _locked(root.with_suffix(".lock")):
        if not (root / _READY).exists():
            shutil.rmtree(root, ignore_errors=True)
            streams.warn(f"xpu_moe: installing {', '.join(requirements)} in {root}")
            _run(
                [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(root), *requirements], name
            )
            (root / _READY).touch()
    return root


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(command: list[str], name: str) -> None:
    environ = {**read.snapshot(), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise ToolEnvironmentError(f"{name} environment: `{' '.join(command[:4])} …` failed:\n{tail}")
