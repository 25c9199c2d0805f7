"""Peer memory: on each rank one allocation that every other rank of the group has mapped (CUDA IPC, no multicast).

Setting up is collective: every rank of the group calls `setup`, and either all get an arena or all get the reason why
there is none. What it needs: one process a GPU, all of one host, each GPU able to reach each other one directly.
"""

from __future__ import annotations

import ctypes
import socket
from dataclasses import dataclass, field
from typing import Any

import torch

from xpu_moe.cuda import jit

HEADER = 256  # bytes before the first slot, as in lamport.cuh
SLOTS = 3
MAX_WORLD = 8
DEFAULT_SLOT_BYTES = 16 << 20
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_RECORD_WORDS = 8


class NoPeerMemory(RuntimeError):
    """The group has no arena; the message is the reason, the same on every rank."""


class PeerTimeout(RuntimeError):
    """A rank waited for a peer's words longer than the limit; says who waited for whom."""


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


@dataclass(frozen=True)
class Arena:
    """Mapped peer memory of one group. `pointers[r]` is rank r's arena in this process's address space."""

    group: str
    rank: int
    world_size: int
    device: int
    slot_bytes: int
    pointers: tuple[int, ...]
    record: Any = field(repr=False)  # host memory where a kernel that gave up says for whom it waited
    record_device: int = 0
    limit_ns: int = 60_000_000_000

    @property
    def bytes(self) -> int:
        """Device memory that a rank holds."""
        return HEADER + SLOTS * self.slot_bytes

    def padded_pointers(self) -> tuple[int, ...]:
        """Eight pointers, the ones behind the world size null."""
        return (*self.pointers, *(0,) * (MAX_WORLD - self.world_size))

    def check(self) -> None:
        """Raise PeerTimeout when a kernel of this rank gave up waiting (readable even though the context is lost)."""
        if self.record[0]:
            rank, peer, slot, offset, waited = self.record[1:6]
            raise PeerTimeout(
                f"group {self.group}: rank {rank} waited {waited / 1e9:.1f} s for rank {peer} (slot {slot}, byte "
                f"{offset}): that rank is dead, stuck, or made another sequence of calls"
            )


_arenas: dict[str, Arena] = {}
_reasons: dict[str, str] = {}


def find(group: str) -> Arena | None:
    """The arena of a group, None where there is none."""
    return _arenas.get(group)


def reason(group: str) -> str:
    """Why a group has no arena."""
    return _reasons.get(
        group, f"peer memory of group {group!r} is not mapped: call cuda.collectives.setup on every rank"
    )


def setup(communicator: Any, *, slot_bytes: int = DEFAULT_SLOT_BYTES, limit_s: float = 60.0) -> Arena:
    """Allocate and exchange the arenas of a group (collective). Found again by later calls. Raises NoPeerMemory."""
    known = _arenas.get(communicator.name)
    if known is not None:
        return known
    if not 2 <= communicator.world_size <= MAX_WORLD:
        raise _refused(communicator.name, f"world size {communicator.world_size}: wanted 2 to {MAX_WORLD}")
    device = torch.cuda.current_device()
    slot_bytes = -(-slot_bytes // 4096) * 4096
    own, mine = _allocate(HEADER + SLOTS * slot_bytes)
    told = _gather(communicator, mine)
    problem = _disagreement(told)
    pointers: list[int] = []
    if problem is None:
        pointers, opened = _open(communicator.rank, own, told)
        problem = next((text for text in _gather(communicator, opened) if text), None)
    if problem is not None:
        _release(communicator.rank, own, pointers)
        raise _refused(communicator.name, problem)
    record, record_device = _host_record()
    arena = Arena(
        communicator.name, communicator.rank, communicator.world_size, device, slot_bytes, tuple(pointers), record,
        record_device, int(limit_s * 1e9),
    )  # fmt: skip
    communicator.barrier()  # everybody's slots are empty before anybody's first push
    torch.cuda.synchronize()
    _arenas[communicator.name] = arena
    _reasons.pop(communicator.name, None)
    return arena


def close(communicator: Any) -> None:
    """Unmap and free a group's arena (collective). Does nothing where there is none."""
    arena = _arenas.pop(communicator.name, None)
    if arena is None:
        return
    torch.cuda.synchronize()
    communicator.barrier()
    torch.cuda.synchronize()
    _release(arena.rank, arena.pointers[arena.rank], list(arena.pointers))


def _refused(group: str, text: str) -> NoPeerMemory:
    _reasons[group] = text
    return NoPeerMemory(f"group {group}: {text}")


def _gather(communicator: Any, value: Any) -> list[Any]:
    found: list[Any] = [None] * communicator.world_size
    torch.distributed.all_gather_object(found, value, group=communicator.process_group)
    return found


def _allocate(size: int) -> tuple[int, dict[str, Any]]:
    """(own pointer, what to tell the others): the memory is EMPTY, its header 0."""
    told: dict[str, Any] = {"host": _host(), "size": size, "arch": jit.architecture(), "error": None, "handle": b""}
    pointer = ctypes.c_uint64(0)
    try:
        torch.cuda.synchronize()  # makes the context current
        driver = jit.driver()
        jit.check(driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)), f"allocate {size} bytes")
        jit.check(driver.cuMemsetD8_v2(pointer, ctypes.c_ubyte(0xFF), ctypes.c_size_t(size)), "clear the slots")
        jit.check(driver.cuMemsetD8_v2(pointer, ctypes.c_ubyte(0), ctypes.c_size_t(HEADER)), "clear the header")
        torch.cuda.synchronize()
        handle = _IpcHandle()
        jit.check(driver.cuIpcGetMemHandle(ctypes.byref(handle), pointer), "make an IPC handle")
        told["handle"] = bytes(handle)
        told["uuid"] = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    except (jit.DriverError, RuntimeError) as error:
        told["error"] = str(error)
    return pointer.value, told


def _host() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def _disagreement(told: list[dict[str, Any]]) -> str | None:
    """Why these ranks cannot share memory, None where they can."""
    for rank, other in enumerate(told):
        if other["error"]:
            return f"rank {rank}: {other['error']}"
    for what, text in (("host", "ranks are on different hosts"), ("size", "slot sizes differ")):
        if len({other[what] for other in told}) > 1:
            return text
    if len({other["arch"] for other in told}) > 1:
        return f"architectures differ: {', '.join(other['arch'] for other in told)}"
    if len({other["uuid"] for other in told}) < len(told):
        return "two ranks share a GPU"
    return None


def _open(rank: int, own: int, told: list[dict[str, Any]]) -> tuple[list[int], str | None]:
    """(pointers by rank, error)."""
    pointers = [0] * len(told)
    pointers[rank] = own
    open_handle = jit.driver().cuIpcOpenMemHandle_v2
    open_handle.argtypes = [ctypes.c_void_p, _IpcHandle, ctypes.c_uint]
    for peer, other in enumerate(told):
        if peer == rank:
            continue
        mapped = ctypes.c_uint64(0)
        handle = _IpcHandle.from_buffer_copy(other["handle"])
        try:
            jit.check(open_handle(ctypes.byref(mapped), handle, _LAZY_PEER_ACCESS), f"map rank {peer}'s memory")
        except jit.DriverError as error:
            return pointers, f"rank {rank}: {error}"
        pointers[peer] = mapped.value
    return pointers, None


def _release(rank: int, own: int, pointers: list[int]) -> None:
    driver = jit.driver()
    for peer, pointer in enumerate(pointers):
        if peer != rank and pointer:
            driver.cuIpcCloseMemHandle(ctypes.c_uint64(pointer))
    if own:
        driver.cuMemFree_v2(ctypes.c_uint64(own))


def _host_record() -> tuple[Any, int]:
    """(words of pinned host memory, their device address)."""
    size = _RECORD_WORDS * 8
    pointer, seen = ctypes.c_void_p(), ctypes.c_uint64(0)
    driver = jit.driver()
    jit.check(driver.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(size), 2), "pin the record")  # 2: mapped
    jit.check(driver.cuMemHostGetDevicePointer_v2(ctypes.byref(seen), pointer, 0), "map the record")
    ctypes.memset(pointer.value or 0, 0, size)
    return (ctypes.c_uint64 * _RECORD_WORDS).from_address(pointer.value or 0), seen.value
