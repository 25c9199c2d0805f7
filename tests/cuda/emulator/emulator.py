"""CUDA C++ kernels on a CPU: compiled by the host's C++ compiler against an emulated machine, and checked.

A kernel's source is compiled as it is; only its header of instructions, ptx.cuh, is replaced by the emulator's. Every
lane is a fiber; the order in which they run, when a bulk copy arrives, and when other blocks see a store (stores.cpp),
are drawn from a seed, so several seeds are several interleavings. What a run refuses (`Fault`): accesses outside the
tensors that were named, or of shared memory that barriers do not order; copies that are askew; barriers used before
they are made; lanes that meet in different collectives; launches that never end. What it cannot show: time, registers,
loads that are made early, blocks that see two stores in different orders.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from xpu_moe import cache as files
from xpu_moe.cuda import jit
from xpu_moe.cuda.compiler import Program

_HERE = Path(__file__).parent
_MACHINE = ("fibers.cpp", "launches.cpp", "warps.cpp", "barriers.cpp", "memory.cpp", "stores.cpp", "tensor.cpp")
_FOR_KERNELS = ("machine.hpp", "words.hpp", "numbers.hpp", "entry.hpp")
_OPTIONS = (
    "-std=c++17", "-O2", "-g1", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-Wno-unknown-pragmas",
    "-U_FORTIFY_SOURCE",  # Ubuntu's compilers define it: its longjmp refuses to change stacks, which fibers are about
)  # fmt: skip
# Every plain load and store calls the machine: the library that would answer otherwise is not linked.
_WATCHED = ("-fsanitize=thread",)
_MOST_SLOTS = 64
_SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")
_STATIC = re.compile(r"(?<!extern )__shared__ (?:__align__\(\d+\) )?(\w+) (\w+)((?:\[[^;\]]+\])*)(?: = [^;]*)?;")


class Fault(AssertionError):
    """The kernel did what it may not do; the message says what, and where."""


@dataclass(frozen=True)
class Counted:
    """What a run came to."""

    switches: int
    copies: int
    copied_bytes: int


class _Launch(ctypes.Structure):
    _fields_ = [
        ("body", ctypes.c_void_p), ("slots", ctypes.c_void_p),
        ("constants", ctypes.c_void_p), ("constants_end", ctypes.c_void_p),
        ("grid", ctypes.c_uint32), ("block", ctypes.c_uint32),
        ("shared", ctypes.c_uint32), ("static_shared", ctypes.c_uint32),
        ("stream", ctypes.c_uint32), ("resident", ctypes.c_uint32), ("programmatic", ctypes.c_uint32),
    ]  # fmt: skip


class _Range(ctypes.Structure):
    _fields_ = [
        ("first", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("writable", ctypes.c_int),
        ("stream", ctypes.c_int), ("name", ctypes.c_char_p),
    ]  # fmt: skip


class _Report(ctypes.Structure):
    _fields_ = [
        ("text", ctypes.c_char * 4096), ("switches", ctypes.c_uint64), ("copies", ctypes.c_uint64),
        ("copied_bytes", ctypes.c_uint64),
    ]  # fmt: skip


def compiler() -> str:
    """The host's C++ compiler. Raises RuntimeError with what to install."""
    found = shutil.which("g++")
    if found is None:
        raise RuntimeError("the emulator needs g++; on Debian or Ubuntu: apt install --no-install-recommends g++")
    return found


def _built(name: str, texts: Mapping[str, str], options: Sequence[str], units: Sequence[str]) -> Path:
    """A shared library of `units` (each compiled with `options`), kept under the hash of everything in it."""
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    parts = [version, *_OPTIONS, *options, *units, *(part for pair in sorted(texts.items()) for part in pair)]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    folder = files.folder("emulated")
    library = folder / f"{name}-{key}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as work:
        for file, text in texts.items():
            Path(work, file).write_text(text, encoding="utf-8")
        objects = []
        for unit in units:
            objects.append(f"{unit}.o")
            _run([compiler(), *_OPTIONS, *options, "-c", unit, "-o", objects[-1]], work)
        _run([compiler(), "-shared", "-o", "built.so", *objects], work)
        os.replace(Path(work, "built.so"), library)
    return library


def _run(command: Sequence[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-4000:]}")


@cache
def _machine() -> ctypes.CDLL:
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(_HERE.glob("*.[ch]pp"))}
    library = ctypes.CDLL(str(_built("machine", texts, (), _MACHINE)), mode=ctypes.RTLD_GLOBAL)
    library.machine_emulate.argtypes = [
        ctypes.POINTER(_Launch), ctypes.c_int, ctypes.POINTER(_Range), ctypes.c_int, ctypes.c_uint64, ctypes.c_int,
        ctypes.c_int, ctypes.POINTER(_Report),
    ]  # fmt: skip
    return library


def _for_host(text: str) -> str:
    """The source with its shared memory taken from the machine: C++ has no such storage."""
    text = _SHARED.sub(r"\1* const \2 = (\1*)machine::dynamic_shared();", text)
    return _STATIC.sub(
        r"typedef \1 \2_type\3; static const char \2_key = 0; "
        r"\2_type& \2 = *(\2_type*)machine::static_shared(&\2_key, sizeof(\2_type));",
        text,
    )


class Kernel:
    """An emulated kernel: what `jit.Kernel` is on a card."""

    def __init__(self, unit: Program, name: str, signature: str) -> None:
        _machine()
        texts = {file: (_HERE / file).read_text(encoding="utf-8") for file in _FOR_KERNELS}
        texts |= {file: _for_host(text) for file, text in unit.headers}
        texts["ptx.cuh"] = (_HERE / "ptx.cuh").read_text(encoding="utf-8")
        # Behind the headers, which have names of their own: kernels define letters like I and H.
        defines = "".join(f"#define {key} {value}\n" for key, value in (*unit.defines, ("KERNEL", name)))
        headers = "".join(f'#include "{file}"\n' for file in ("words.hpp", "numbers.hpp"))
        texts["kernel.cpp"] = f'{headers}{defines}{_for_host(unit.text)}\n#include "entry.hpp"\n'
        self._library = ctypes.CDLL(str(_built(unit.name, texts, _WATCHED, ("kernel.cpp",))))
        for function in ("emulated_constants", "emulated_constants_end"):
            getattr(self._library, function).restype = ctypes.c_void_p
        self._format, _ = jit.arguments_layout(signature)

    def launch_of(
        self,
        grid: int,
        block: int,
        arguments: Sequence[int | float],
        shared: int = 0,
        static_shared: int = 0,
        *,
        stream: int = 0,
        resident: int = 0,
        programmatic: bool = True,
    ) -> _Launch:
        """A launch of `grid` blocks of `block` threads; `shared`, `static_shared`: bytes of a block.

        `resident`: so many blocks at once, begun in order (0: all). `programmatic`: it may begin when the launch before
        lets it."""
        packed = struct.pack(self._format, *arguments)
        slots = (ctypes.c_uint64 * _MOST_SLOTS).from_buffer_copy(packed.ljust(_MOST_SLOTS * 8, b"\0"))
        launch = _Launch(
            ctypes.cast(self._library.emulated_body, ctypes.c_void_p).value, ctypes.addressof(slots),
            self._library.emulated_constants(), self._library.emulated_constants_end(), grid, block, shared,
            static_shared, stream, resident, programmatic,
        )  # fmt: skip
        launch.kept = slots  # alive as long as the launch
        return launch


@dataclass(frozen=True)
class Memory:
    """What a kernel may touch."""

    address: int
    bytes: int
    writable: bool = False
    stream: int = -1  # whose launches may touch it (-1: all)


def of(tensor: torch.Tensor, writable: bool = False, stream: int = -1) -> Memory:
    """A tensor whose elements lie one behind the other."""
    return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), writable, stream)


def run(
    launches: Sequence[_Launch], memory: Mapping[str, Memory], seed: int = 0, races: bool = True, patience: int = 200
) -> Counted:
    """Emulate launches: those of a stream one after the other, streams side by side.

    Raises Fault, also when `patience` rounds bring nothing to those who look again and again.
    """
    listed = (_Launch * len(launches))(*launches)
    named = (_Range * len(memory))(
        *(_Range(part.address, part.bytes, part.writable, part.stream, name.encode()) for name, part in memory.items())
    )
    report = _Report()
    failed = _machine().machine_emulate(
        listed, len(launches), named, len(memory), seed, races, patience, ctypes.byref(report)
    )
    if failed:
        raise Fault(f"seed {seed}: {report.text.decode()}")
    return Counted(report.switches, report.copies, report.copied_bytes)
