"""Builds the launch library once for each libsycl release and torch version, and finds it in the cache afterwards."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from xpu_moe import cache, streams
from xpu_moe.esimd.runtime.libsycl import Loaded, headers

SOURCES = ("errors.hpp", "plan.hpp", "trace.hpp", "submit.hpp", "torch_ops.hpp", "library.cpp")
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-w")
_HERE = Path(__file__).parent


class BuildError(RuntimeError):
    """The launch library could not be built; the message ends with the compiler's last lines."""


def compiler() -> str:
    """The path of g++. Raises BuildError with the package that brings it."""
    found = shutil.which("g++")
    if found is None:
        raise BuildError("g++: not found, wanted for the launch library; apt-get install g++")
    return found


def torch_version() -> str:
    """torch's version; the library is built against torch's C interface, which needs torch installed."""
    import torch

    return torch.__version__


def _torch_root() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("torch: not installed, wanted for the operators' registration")
    return Path(spec.origin).parent


def key(libsycl: Loaded) -> str:
    """Changes with the sources, the flags, the libsycl file and torch's version."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((_HERE / name).read_bytes())
    real = libsycl.path.resolve()
    for part in (*FLAGS, real.name, str(real.stat().st_size), torch_version()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def build(libsycl: Loaded) -> Path:
    """The shared object for this libsycl (about 5 s on the first call). Raises BuildError."""
    folder = cache.folder("launch", f"sycl{libsycl.major}-{key(libsycl)}")
    target = folder / "libxpu_moe_launch.so"
    if target.exists():
        return target
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            streams.warn(f"xpu_moe: building the launch library for {libsycl.path.name} in {folder}")
            _compile(libsycl, target)
    return target


def _compile(libsycl: Loaded, target: Path) -> None:
    torch = _torch_root()
    # An XPU build of torch may hold libsycl-preview, the same release with another ABI.
    preview = ["-D__INTEL_PREVIEW_BREAKING_CHANGES"] if "-preview" in libsycl.path.name else []
    unfinished = target.with_suffix(f".{os.getpid()}")
    command = [
        compiler(), *FLAGS, *preview, str(_HERE / "library.cpp"), "-o", str(unfinished),
        f"-I{headers(libsycl)}", f"-I{torch / 'include'}",
        str(libsycl.path), f"-L{torch / 'lib'}", "-ltorch_cpu", "-ldl",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise BuildError(f"launch library: `{' '.join(command[:1])} …` failed for {libsycl.path}:\n{tail}")
    unfinished.rename(target)
