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
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from xpu_moe.cuda import fastlaunch
from xpu_moe.cuda.compiler import INSTRUCTIONS, CompileError, NoCompiler, Program, cubin, program

__all__ = [
    "INSTRUCTIONS",
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


def _letters(signature: str) -> list[tuple[str, str]]:
    return re.findall(r"(\d*)([A-Za-z])", signature)


def arguments_layout(signature: str) -> tuple[str, list[int]]:
    """(struct format, byte offset of each parameter) of a signature."""
    layout, offsets, at = "<", [], 0
    for count, letter in _letters(signature):
        repeats = int(count or 1)
        layout += _SLOTS[letter] * repeats
        offsets.append(at)
        at += 8 * repeats
    return layout, offsets


class Launch:
    """A kernel with its launch shape: calling it packs the arguments and enqueues. About 3 us of host time."""

    def __init__(self, kernel: Kernel, config: _Config, attributes: Any) -> None:
        layout, offsets = arguments_layout(kernel.signature)
        self._kernel, self._config, self._attributes = kernel, config, attributes
        packer = struct.Struct(layout)
        self._buffer = ctypes.create_string_buffer(max(8, packer.size))
        base = ctypes.addressof(self._buffer)
        self._slots = (ctypes.c_void_p * max(1, len(offsets)))(*(base + offset for offset in offsets))
        self._pack, self._lock, self._enqueue = packer.pack_into, threading.Lock(), driver().cuLaunchKernelEx
        self._enqueue.argtypes = [ctypes.c_void_p] * 4
        self._at = (ctypes.addressof(config), kernel.function.value, ctypes.addressof(self._slots), None)

    def __call__(self, stream: int, *arguments: int | float) -> None:
        """Enqueue on `stream`; a struct parameter takes as many arguments as it has members."""
        with self._lock:
            self._config.stream = stream
            self._pack(self._buffer, 0, *arguments)
            code = self._enqueue(*self._at)
        if code:
            self._complain(code)

    def fixed(self, start: int, stop: int, *arguments: int | float) -> Callable[..., None]:
        """A callable (stream, pointers `start` to `stop`): the others keep the values given here. Owns this launch."""
        letters = "".join(letter * int(count or 1) for count, letter in _letters(self._kernel.signature))
        if set(letters[start:stop]) - {"P"}:
            raise ValueError(f"{self._kernel.name}: arguments {start} to {stop} of {letters!r} are not all pointers")
        self._pack(self._buffer, 0, *arguments)
        fast, _ = fastlaunch.launcher()
        if fast is not None:
            config_at, function, slots, _ = self._at
            stream_at, head = config_at + _Config.stream.offset, ctypes.addressof(self._buffer) + 8 * start
            enqueue_at = ctypes.cast(self._enqueue, ctypes.c_void_p).value
            return fast(enqueue_at, config_at, stream_at, function, slots, head, stop - start, self._complain)
        pack, at = struct.Struct("<" + "".join(_SLOTS[c] for c in letters[start:stop])).pack_into, 8 * start
        buffer, config, enqueue, where, lock, complain = (
            self._buffer, self._config, self._enqueue, self._at, self._lock, self._complain,
        )  # fmt: skip
        config_at, function, slots, none = where
        last = -1

        def call(stream: int, *changed: int | float) -> None:
            nonlocal last
            with lock:
                if stream != last:
                    config.stream = last = stream
                pack(buffer, at, *changed)
                code = enqueue(config_at, function, slots, none)
            if code:
                complain(code)

        return call

    def _complain(self, code: int) -> None:
        shape = f"grid {tuple(self._config.grid)} block {tuple(self._config.block)} shared {self._config.shared}"
        check(code, f"launch {self._kernel.name} {shape}")


class Kernel:
    """A loaded kernel of one device; letters of `signature`: P i I q Q f, with a count for a struct."""

    def __init__(self, function: ctypes.c_void_p, name: str, signature: str) -> None:
        self.function, self.name, self.signature = function, name, signature
        self._launches: dict[tuple, Launch] = {}
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
        """Enqueue on `stream`; the other keywords are those of `bind`."""
        shape = (*grid, None, *block, shared, programmatic, cooperative, cluster)
        found = self._launches.get(shape)
        if found is None:
            if len(self._launches) >= 1024:
                self._launches.clear()
            found = self._launches[shape] = self.bind(
                grid, block, shared=shared, programmatic=programmatic, cooperative=cooperative, cluster=cluster
            )
        found(stream, *arguments)

    def bind(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        *,
        shared: int = 0,
        programmatic: bool = False,
        cooperative: bool = False,
        cluster: int = 1,
    ) -> Launch:
        """This kernel with a launch shape. `shared` is dynamic shared memory in bytes; `programmatic` lets the start
        of a launch overlap the end of the kernel before (it must then execute griddepcontrol.wait)."""
        self._allow(shared)
        attributes = (_Attribute * 3)()
        config = _Config()
        config.attributes = attributes
        config.grid[:] = (*grid, *(1,) * (3 - len(grid)))
        config.block[:] = (*block, *(1,) * (3 - len(block)))
        config.shared = shared
        for wanted, identifier, value in (
            (cooperative, _COOPERATIVE, (1,)),
            (cluster > 1, _CLUSTER, (cluster, 1, 1)),
            (programmatic, _PROGRAMMATIC, (1,)),
        ):
            if wanted:
                attribute = attributes[config.count]
                attribute.id = identifier
                attribute.value[: len(value)] = value
                config.count += 1
        return Launch(self, config, attributes)

    def _allow(self, shared: int) -> None:
        """Raise the kernel's limit of dynamic shared memory, which starts at 48 KiB."""
        if shared > self._shared:
            set_attribute = driver().cuFuncSetAttribute
            code = set_attribute(self.function, _MAX_DYNAMIC_SHARED, shared)
            check(code, f"{self.name}: {shared} bytes of shared memory")
            self._shared = shared

    def attribute(self, name: str) -> int:
        """registers | local_bytes (a thread's spills and stack) | shared_bytes (static) | max_threads."""
        value = ctypes.c_int()
        check(driver().cuFuncGetAttribute(ctypes.byref(value), _QUERIES[name], self.function), f"{self.name}.{name}")
        return value.value

    def blocks_per_multiprocessor(self, threads: int, shared: int = 0) -> int:
        """How many blocks of this shape are resident on one multiprocessor at once."""
        self._allow(shared)
        value = ctypes.c_int()
        ask = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor
        check(ask(ctypes.byref(value), self.function, threads, ctypes.c_size_t(shared)), f"{self.name}: occupancy")
        return value.value
