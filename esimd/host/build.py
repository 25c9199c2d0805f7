"""Kernel modules as programs of the host CPU: clang against Intel's headers, kept by the hash of what they are."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from pathlib import Path

from xpu_moe import cache
from xpu_moe.esimd.kernels import instances
from xpu_moe.esimd.kernels.instances import Module
from xpu_moe.esimd.tools import programs

FOLDER = Path(__file__).parent
_COMMON = ("-std=c++17", "-w", "-DXPU_MOE_HOST", "-pthread")

# A kind of build: its flags, and whether it is a library for this process or a program of its own.
LIBRARY = "library"
KINDS: dict[str, tuple[str, ...]] = {
    LIBRARY: ("-O2", "-fPIC", "-shared", "-Wl,-z,defs"),
    "plain": ("-O0",),  # small cases: what counts is the compiler's time
    "address": ("-O1", "-g", "-DXPU_MOE_HOST_THREADS", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-O1", "-g", "-DXPU_MOE_HOST_THREADS", "-fsanitize=thread"),
    # every load and store of the compiled code, not only messages: shows a plain dereference in a kernel
    "coverage": ("-O1", "-g", "-fsanitize-coverage=func,trace-loads,trace-stores"),
}


class HostBuildError(RuntimeError):
    """clang refused a kernel; the message is its text."""


def _wide() -> tuple[str, ...]:
    """AVX2 and half conversions where this CPU has them: the emulation is several times as fast."""
    with contextlib.suppress(OSError):
        words = set(Path("/proc/cpuinfo").read_text().split())
        if {"avx2", "f16c", "fma", "bmi2"} <= words:
            return ("-march=x86-64-v3",)
    return ()


def build(module: Module, kind: str = LIBRARY, kernels: Path = instances.FOLDER) -> Path:
    """The shared library or program of a module, from the cache or built now (5 to 15 s).

    `kernels` is the folder of the kernels' headers: tests plant bugs in copies of it. Raises HostBuildError, and
    MissingProgram where clang is not there.
    """
    root = programs.compiler_root()
    clang = programs.find("clang")
    main = "library.cpp" if kind == LIBRARY else "driver.cpp"
    source = instances.source(module) + f'#include "{main}"\n'
    flags = [*_COMMON, *KINDS[kind], *(_wide() if kind == LIBRARY else ())]
    digest = hashlib.sha256("\0".join([source, *flags, clang.version, *programs.COMPILER]).encode())
    for folder in (kernels, FOLDER):
        for header in sorted([*folder.glob("*.hpp"), *folder.glob("*.cpp")]):
            digest.update(header.name.encode() + b"\0" + header.read_bytes() + b"\0")
    made = cache.folder("esimd_host") / f"{module.name}-{kind}-{digest.hexdigest()[:16]}"
    if made.exists():
        return made
    unit = made.with_suffix(f".{os.getpid()}.cpp")
    unit.write_text(source, encoding="utf-8")
    partial = made.with_suffix(f".{os.getpid()}.partial")
    command = [
        clang.path, *flags, f"-I{FOLDER}", f"-I{kernels}", f"-I{root / 'include'}", str(unit), "-o", str(partial),
        f"-L{root / 'lib'}", f"-Wl,-rpath,{root / 'lib'}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    unit.unlink()
    if done.returncode:
        raise HostBuildError(f"{module.name} ({kind}): {done.stderr.strip()[-4000:]}")
    partial.rename(made)
    return made
