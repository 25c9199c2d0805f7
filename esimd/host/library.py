"""Launching kernels of the host build in this process, with bytes counted."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from xpu_moe.esimd.host import build
from xpu_moe.esimd.kernels import abi, instances
from xpu_moe.esimd.kernels.launch import Launch

_COUNTERS = ("loaded", "stored", "prefetched", "loads", "stores")


class _Traffic(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in _COUNTERS]


@dataclass(frozen=True)
class Traffic:
    """Bytes and messages of one launch."""

    loaded: int
    stored: int
    prefetched: int
    loads: int
    stores: int


@dataclass
class Watch:
    """How often each byte of an array was loaded and stored. Counts add up over launches."""

    name: str
    array: np.ndarray
    loads: np.ndarray = field(init=False)
    stores: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        if not self.array.flags.c_contiguous:
            raise ValueError(f"{self.name}: got a strided array, wanted a contiguous one")
        self.loads = np.zeros(self.array.nbytes, np.uint16)
        self.stores = np.zeros(self.array.nbytes, np.uint16)

    @property
    def loaded(self) -> int:
        """Bytes loaded, repetitions included."""
        return int(self.loads.sum(dtype=np.int64))

    @property
    def distinct(self) -> int:
        """Bytes loaded at least once."""
        return int(np.count_nonzero(self.loads))


@cache
def _open(module: str) -> ctypes.CDLL:
    library = ctypes.CDLL(str(build.build(instances.modules()[module])))
    library.esimd_host_watch.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
    library.esimd_host_run.argtypes = [
        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64,
        ctypes.POINTER(_Traffic),
    ]  # fmt: skip
    return library


def pack(family: str, values: dict[str, object]) -> np.ndarray:
    """Arguments of a kernel as 8-byte words, in the order of abi.SIGNATURES. An array gives its address, None is null.

    Raises KeyError for a missing argument and ValueError for a null that the kernel does not take.
    """
    signature = abi.SIGNATURES[family]
    words = np.zeros((len(signature), 8), np.uint8)
    for row, argument in zip(words, signature):
        value = values[argument.name]
        if argument.kind == "int":
            row[:4] = np.array([value], np.int32).view(np.uint8)
        elif argument.kind == "float":
            row[:4] = np.array([value], np.float32).view(np.uint8)
        elif isinstance(value, np.ndarray):
            row[:] = np.array([value.ctypes.data], np.uint64).view(np.uint8)
        elif not argument.nullable:
            raise ValueError(f"{family}: {argument.name} is null")
    return words


def run(
    launch: Launch, family: str, values: dict[str, object], watches: Sequence[Watch] = (), seed: int = 0
) -> Traffic:
    """One launch, finished at return. `seed` != 0 draws another order of groups and work-items."""
    library = _open(launch.module)
    words = pack(family, values)
    for watch in watches:
        library.esimd_host_watch(
            watch.array.ctypes.data, watch.array.nbytes, watch.loads.ctypes.data, watch.stores.ctypes.data
        )
    groups, local = np.array(launch.groups, np.uint64), np.array(launch.local, np.uint64)
    counted = _Traffic()
    try:
        library.esimd_host_run(
            launch.kernel.encode(), groups.ctypes.data, local.ctypes.data, words.ctypes.data, len(words), seed,
            ctypes.byref(counted),
        )  # fmt: skip
    finally:
        library.esimd_host_unwatch()
    return Traffic(*(getattr(counted, name) for name in _COUNTERS))
