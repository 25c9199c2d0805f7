"""Loading and launching compiled kernels through the driver, cheaply enough for calls of a few microseconds.

A launch packs its arguments with one `struct` call into a buffer that lives as long as the kernel, and makes one
ctypes call into libcuda: about 1 us of host time. It works under graph capture.

    kernel = jit.load(jit.program(file, {"HEADS": 8}), "scale", "PPif")     # the current device's
    kernel.launch((blocks,), (256,), x.data_ptr(), out.data_ptr(), n, 0.5, stream=jit.stream())
"""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections.abc import Sequence
from functools import cache

import torch

from xpu_moe.cuda.compiler import CompileError, NoCompiler, Program, cubin, program

__all__ = [
    "CompileError",
    "DriverError",
    "Kernel",
    "NoCompiler",
    "Program",
    "architecture",
    "load",
    "program",
    "stream",
]

# P pointer, i int32, I uint32, q int64, Q uint64, f float32, each in a slot of 8 bytes; "8P" is one parameter, a struct
# of eight pointers, given as eight arguments.
_SLOTS = {"P": "Q", "i": "i4x", "I": "I4x", "q": "q", "Q": "Q", "f": "f4x"}
_COOPERATIVE, _CLUSTER, _PROGRAMMATIC = 2, 4, 6  # CUlaunchAttributeID
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_QUERIES = {"registers": 4, "local_bytes": 3, "shared_bytes": 1, "max_threads": 0}  # CUfunction_attribute


class DriverError(RuntimeError):
    """A call into libcuda failed."""


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


@cache
def driver() -> ctypes.CDLL:
    """libcuda. Raises DriverError where the machine has no NVIDIA driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"libcuda.so.1 does not load: {error}") from None


def check(code: int, what: str) -> None:
    """Raise DriverError for a CUresult that is not 0."""
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise DriverError(f"{what}: CUDA error {code} ({(text.value or b'unknown').decode()})")


def architecture(device: int | None = None) -> str:
    """sm_90 and so on, of a device (default: the current one)."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def stream(device: int | None = None) -> int:
    """The handle of torch's current stream, without making a Stream object."""
    return torch._C._cuda_getCurrentRawStream(torch.cuda.current_device() if device is None else device)


def load(unit: Program, name: str, signature: str, device: int | None = None) -> Kernel:
    """A kernel of `unit` on a device (default: the current one): compiled and loaded once in a process."""
    return _load(unit, name, signature, torch.cuda.current_device() if device is None else device)


@cache
def _load(unit: Program, name: str, signature: str, device: int) -> Kernel:
    function = ctypes.c_void_p()
    with torch.cuda.device(device):
        check(driver().cuModuleGetFunction(ctypes.byref(function), _module(unit, device), name.encode()), name)
        return Kernel(function, name, signature)


@cache
def _module(unit: Program, device: int) -> ctypes.c_void_p:
    torch.cuda.current_stream(device)  # the primary context exists and is current
    torch.cuda.synchronize(device)
    module = ctypes.c_void_p()
    code = cubin(unit, architecture(device))
    check(driver().cuModuleLoadData(ctypes.byref(module), code), f"load {unit.name}")
    return module


def arguments_layout(signature: str) -> tuple[str, list[int]]:
    """(struct format, byte offset of each parameter) of a signature."""
    layout, offsets, at = "<", [], 0
    for count, letter in re.findall(r"(\d*)([A-Za-z])", signature):
        repeats = int(count or 1)
        layout += _SLOTS[letter] * repeats
        offsets.append(at)
        at += 8 * repeats
    return layout, offsets


class Kernel:
    """A loaded kernel of one device; letters of `signature`: P i I q Q f, with a count for a struct."""

    def __init__(self, function: ctypes.c_void_p, name: str, signature: str) -> None:
        self.function, self.name, self.signature = function, name, signature
        layout, offsets = arguments_layout(signature)
        self._format = struct.Struct(layout)
        self._buffer = ctypes.create_string_buffer(max(8, self._format.size))
        base = ctypes.addressof(self._buffer)
        self._slots = (ctypes.c_void_p * max(1, len(offsets)))(*(base + offset for offset in offsets))
        self._attributes = (_Attribute * 3)()
        self._config = _Config()
        self._config.attributes = self._attributes
        self._lock = threading.Lock()
        self._shape: tuple = ()
        self._launch = driver().cuLaunchKernelEx
        self._launch.argtypes = [ctypes.c_void_p] * 4
        self._addresses = (ctypes.addressof(self._config), function.value, ctypes.addressof(self._slots))
        self._shared = 48 << 10

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        *arguments: int | float,
        stream: int,
        shared: int = 0,
        programmatic: bool = False,
        cooperative: bool = False,
        cluster: int = 1,
    ) -> None:
        """Enqueue on `stream`. `shared` is dynamic shared memory in bytes; `programmatic` lets the start of this
        kernel overlap the end of the one before (it must then execute griddepcontrol.wait)."""
        with self._lock:
            shape = (*grid, *block, shared, programmatic, cooperative, cluster)
            if shape != self._shape:
                self._configure(grid, block, shared, programmatic, cooperative, cluster)
                self._shape = shape
            self._config.stream = stream
            self._format.pack_into(self._buffer, 0, *arguments)
            config, function, slots = self._addresses
            code = self._launch(config, function, slots, None)
        if code:
            check(code, f"launch {self.name} grid {tuple(grid)} block {tuple(block)} shared {shared}")

    def _configure(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        programmatic: bool,
        cooperative: bool,
        cluster: int,
    ) -> None:
        if shared > self._shared:
            check(
                driver().cuFuncSetAttribute(self.function, _MAX_DYNAMIC_SHARED, shared),
                f"{self.name}: {shared} bytes shared",
            )
            self._shared = shared
        config = self._config
        config.grid[:] = (*grid, *(1,) * (3 - len(grid)))
        config.block[:] = (*block, *(1,) * (3 - len(block)))
        config.shared, config.count = shared, 0
        for wanted, identifier, value in (
            (cooperative, _COOPERATIVE, (1,)),
            (cluster > 1, _CLUSTER, (cluster, 1, 1)),
            (programmatic, _PROGRAMMATIC, (1,)),
        ):
            if wanted:
                attribute = self._attributes[config.count]
                attribute.id = identifier
                attribute.value[: len(value)] = value
                config.count += 1

    def attribute(self, name: str) -> int:
        """registers | local_bytes (a thread's spills and stack) | shared_bytes (static) | max_threads."""
        value = ctypes.c_int()
        check(driver().cuFuncGetAttribute(ctypes.byref(value), _QUERIES[name], self.function), f"{self.name}.{name}")
        return value.value

    def blocks_per_multiprocessor(self, threads: int, shared: int = 0) -> int:
        """How many blocks of this shape are resident on one multiprocessor at once."""
        if shared > self._shared:
            check(
                driver().cuFuncSetAttribute(self.function, _MAX_DYNAMIC_SHARED, shared),
                f"{self.name}: {shared} bytes shared",
            )
            self._shared = shared
        value = ctypes.c_int()
        ask = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor
        check(ask(ctypes.byref(value), self.function, threads, ctypes.c_size_t(shared)), f"{self.name}: occupancy")
        return value.value
