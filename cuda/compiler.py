"""CUDA C++ to machine code at run time: NVRTC (the library that torch's CUDA build carries), else nvcc.

The result is kept in the cache folder under the hash of the source, its defines and options, and the architecture, so
a machine compiles each kernel once. Importing this file loads nothing of the device, and compiling needs no GPU.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xpu_moe import cache as files
from xpu_moe import streams
from xpu_moe.env import read

_OPTIONS = ("--std=c++17",)
INSTRUCTIONS = Path(__file__).with_name("ptx.cuh")  # the header that every kernel includes
# Compute capabilities whose full instruction set has a target of its own (wgmma, setmaxnreg: sm_90a).
_SPECIFIC = frozenset({"sm_90", "sm_100", "sm_103", "sm_120"})


class NoCompiler(RuntimeError):
    """Neither NVRTC nor nvcc is here; the message says where was looked."""


class CompileError(RuntimeError):
    """The compiler refused the source; the message ends with its log."""


@dataclass(frozen=True)
class Program:
    """One translation unit. Kernels in it are `extern "C"`.

    `headers` are (name, text) pairs that the source includes by name; `defines` become -DNAME=VALUE. A source that
    includes CUDA's own headers sets `toolkit_headers` (they are then looked for, and their absence is an error).
    """

    name: str
    text: str
    defines: tuple[tuple[str, str | int], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ()
    toolkit_headers: bool = False

    def key(self, architecture: str) -> str:
        """Hash of everything that the machine code depends on."""
        parts = [architecture, self.text, *(f"{k}={v}" for k, v in self.defines), *self.options]
        parts += [part for header in self.headers for part in header]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def program(
    file: Path, defines: Mapping[str, str | int] | None = None, *, headers: Sequence[Path] = (), **more
) -> Program:
    """A Program from a source file (and the headers that it includes by file name)."""
    return Program(
        file.stem,
        file.read_text(encoding="utf-8"),
        tuple(sorted((defines or {}).items())),
        tuple((header.name, header.read_text(encoding="utf-8")) for header in headers),
        **more,
    )


def target(architecture: str) -> str:
    """sm_90 -> sm_90a: the target with the chip's whole instruction set."""
    return f"{architecture}a" if architecture in _SPECIFIC else architecture


def cubin(unit: Program, architecture: str) -> bytes:
    """Machine code of `unit` for `architecture` ("sm_90"), from the cache or compiled now (said on stderr).

    Raises NoCompiler or CompileError.
    """
    architecture = target(architecture)
    path = files.folder("cuda") / f"{unit.name}-{architecture}-{unit.key(architecture)}.cubin"
    if path.exists():
        found = path.read_bytes()
        if found[:4] == b"\x7fELF":
            return found
    made = compile_now(unit, architecture)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as handle:
        handle.write(made)
    os.replace(handle.name, path)
    return made


def compile_now(unit: Program, architecture: str) -> bytes:
    """Compile without looking into the cache. Raises NoCompiler or CompileError."""
    library, nvcc = nvrtc_library(), nvcc_path()
    includes = toolkit_includes() if unit.toolkit_headers else ()
    if unit.toolkit_headers and not includes:
        raise NoCompiler(
            f"{unit.name}: CUDA's headers (cuda_bf16.h) not found; set CUDA_HOME or pip install cuda-toolkit"
        )
    streams.warn(f"xpu_moe: compiling {unit.name} for {architecture}")
    if library is not None:
        return _nvrtc(_loaded(library), unit, architecture, includes)
    if nvcc is not None:
        return _nvcc(nvcc, unit, architecture)
    raise NoCompiler(f"{unit.name}: no NVRTC ({_where()}) and no nvcc on PATH; install torch's CUDA build or a toolkit")


def available() -> str:
    """What would compile: "nvrtc PATH", "nvcc PATH", or "" where nothing is here."""
    library, nvcc = nvrtc_library(), nvcc_path()
    return f"nvrtc {library}" if library else f"nvcc {nvcc}" if nvcc else ""


@cache
def nvrtc_library() -> str | None:
    """Path of libnvrtc: pip's nvidia packages first (they match torch), then CUDA_HOME, then the system."""
    for folder in (*_pip_folders("lib"), *(home / "lib64" for home in _homes())):
        for found in sorted(folder.glob("libnvrtc.so.*"), reverse=True):
            if "alt" not in found.name:
                return str(found)
    return ctypes.util.find_library("nvrtc")


@cache
def nvcc_path() -> str | None:
    """nvcc on PATH or in CUDA_HOME."""
    places = [str(home / "bin" / "nvcc") for home in _homes()]
    return shutil.which("nvcc") or next((place for place in places if os.access(place, os.X_OK)), None)


@cache
def toolkit_includes() -> tuple[str, ...]:
    """Folders with cuda_bf16.h, the first that has it; empty where there is none."""
    for folder in (*_pip_folders("include"), *(home / "include" for home in _homes())):
        if (folder / "cuda_bf16.h").exists():
            extra = folder / "cccl"
            return (str(folder), *((str(extra),) if extra.is_dir() else ()))
    return ()


def _homes() -> tuple[Path, ...]:
    named = read.text("CUDA_HOME")
    return (*((Path(named),) if named else ()), *sorted(Path("/usr/local").glob("cuda*"), reverse=True))


def _pip_folders(leaf: str) -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return [folder for root in roots for folder in sorted(root.glob(f"*/{leaf}"))]


def _where() -> str:
    return ", ".join(map(str, (*_pip_folders("lib"), *_homes(), "ldconfig"))) or "nowhere to look"


def _defines(unit: Program) -> list[str]:
    return [f"-D{name}={value}" for name, value in unit.defines]


def _nvrtc(library: ctypes.CDLL, unit: Program, architecture: str, includes: Sequence[str]) -> bytes:
    handle = ctypes.c_void_p()
    names = (ctypes.c_char_p * len(unit.headers))(*(name.encode() for name, _ in unit.headers))
    texts = (ctypes.c_char_p * len(unit.headers))(*(text.encode() for _, text in unit.headers))
    made = library.nvrtcCreateProgram(
        ctypes.byref(handle), unit.text.encode(), f"{unit.name}.cu".encode(), len(unit.headers), texts, names
    )
    if made:
        raise CompileError(f"{unit.name}: nvrtcCreateProgram returned {made}")
    options = [f"--gpu-architecture={architecture}", *_OPTIONS, *unit.options, *_defines(unit)]
    options += [f"--include-path={folder}" for folder in includes]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        if library.nvrtcCompileProgram(handle, len(options), encoded):
            raise CompileError(f"{unit.name} for {architecture}: NVRTC refused it\n{_text(library, handle)}")
        size = ctypes.c_size_t()
        library.nvrtcGetCUBINSize(handle, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(handle, code)
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(handle))


@cache
def _loaded(library: str) -> ctypes.CDLL:
    """NVRTC. It opens its built-ins by bare name, so those beside it are loaded first."""
    for beside in Path(library).parent.glob("libnvrtc-builtins.so.*"):
        if "alt" not in beside.name:
            ctypes.CDLL(str(beside))
    return ctypes.CDLL(library)


def _text(library: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(handle, ctypes.byref(size))
    log = ctypes.create_string_buffer(max(size.value, 1))
    library.nvrtcGetProgramLog(handle, log)
    return log.value.decode(errors="replace").strip()


def _nvcc(nvcc: str, unit: Program, architecture: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        source, result = root / f"{unit.name}.cu", root / "out.cubin"
        source.write_text(unit.text, encoding="utf-8")
        for name, text in unit.headers:
            (root / name).write_text(text, encoding="utf-8")
        number = architecture.removeprefix("sm_")
        command = [nvcc, "-cubin", f"-gencode=arch=compute_{number},code=sm_{number}", *_OPTIONS, *unit.options]
        command += [*_defines(unit), "-I", folder, "-o", str(result), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CompileError(f"{unit.name} for {architecture}: nvcc refused it\n{done.stderr.strip()}")
        return result.read_bytes()
