"""The C launcher (fastlaunch.c), compiled once with the machine's C compiler; without one the ctypes path is taken.

It saves 2 to 4 us of host time a launch, which is what an eager call of a 2 us kernel costs.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from xpu_moe import cache as files

_SOURCE = Path(__file__).with_suffix(".c")


@cache
def launcher() -> tuple[Any, str]:
    """(the Launch type or None, how launches are made and why)."""
    try:
        return _load(_built()).Launch, "C launcher"
    except (OSError, ImportError, RuntimeError) as error:
        return None, f"ctypes, since the C launcher is not here: {error}"


def _built() -> Path:
    """The compiled module, from the cache or made now. Raises RuntimeError with the compiler's last line."""
    source = _SOURCE.read_bytes()
    tag = sysconfig.get_config_var("SOABI") or "abi"
    path = files.folder("cuda") / f"fastlaunch-{hashlib.sha256(source).hexdigest()[:16]}.{tag}.so"
    if path.exists():
        return path
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError("no C compiler (cc, gcc, clang) on PATH")
    header = Path(sysconfig.get_paths()["include"])
    if not (header / "Python.h").exists():
        raise RuntimeError(f"no Python.h in {header}")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / "fastlaunch.so"
        command = [compiler, "-O2", "-shared", "-fPIC", f"-I{header}", "-o", str(made), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["the C compiler failed"])[-1])
        os.replace(made, path)
    return path


def _load(path: Path) -> Any:
    loader = importlib.machinery.ExtensionFileLoader("fastlaunch", str(path))
    spec = importlib.util.spec_from_loader("fastlaunch", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
