"""Our own variables, read before the start: a wrong value would otherwise end the server in the middle of its load."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Mapping

from xpu_moe.env import parse
from xpu_moe.env.registry import registry
from xpu_moe.launch.backends import backend
from xpu_moe.launch.errors import USAGE, LaunchError

_PREFIX = "XPU_MOE_"
_BACKEND, _VLLM = "XPU_MOE_BACKEND", "XPU_MOE_VLLM"


def check(environ: Mapping[str, str]) -> None:
    """LaunchError(USAGE) for the first XPU_MOE_* variable whose value its reader would refuse."""
    for name in sorted(name for name in environ if name.startswith(_PREFIX)):
        says = _says(name, environ[name], environ)
        if says:
            raise LaunchError(USAGE, f"{name}={environ[name]!r}: {says}")


def unknown(environ: Mapping[str, str]) -> list[str]:
    """One sentence for each XPU_MOE_* variable that nothing reads."""
    names = [name for name in registry() if name.startswith(_PREFIX)]
    found = []
    for name in sorted(name for name in environ if name.startswith(_PREFIX) and name not in names):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.8)
        found.append(f"{name}: no such variable, nothing reads it" + (f"; did you mean {near[0]}?" if near else ""))
    return found


def _says(name: str, value: str, environ: Mapping[str, str]) -> str:
    """What is wrong with a value: what was wanted."""
    if name == _BACKEND:
        try:
            backend(value)
        except ValueError as error:
            return str(error)
    elif name == _VLLM and value and shutil.which(value, path=environ.get("PATH")) is None:
        return "no command that can be run; wanted the path of a vllm command, such as .venv/bin/vllm (or unset it)"
    reading = parse.interpret(name, value)
    return reading.says if reading.fatal else ""
