"""Host half of the collective kernels: builds, grids, launches. All take a group's arena."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from xpu_moe.cuda import jit
from xpu_moe.cuda.collectives.arena import Arena
from xpu_moe.cuda.compiler import INSTRUCTIONS, Program, program

_HERE = Path(__file__).parent
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
PEERS, WATCH = "8P", "2Q"
ONE_SHOT, TWO_SHOT = "one_shot", "two_shot"


@dataclass(frozen=True)
class Shape:
    """Launch shape of an all-reduce: threads a block, vectors a thread, overlap with the kernel before."""

    threads: int
    unroll: int
    programmatic: bool


# (vectors of 16 bytes up to, shape): small messages start on as many multiprocessors as they have warps to fill.
SHAPES: tuple[tuple[int, Shape], ...] = (
    (512, Shape(128, 1, True)),
    (16384, Shape(256, 1, True)),
    (65536, Shape(512, 1, True)),
    (1 << 62, Shape(512, 2, False)),
)


def shape_for(vectors: int) -> Shape:
    """The launch shape for a number of vectors a rank handles."""
    return next(shape for limit, shape in SHAPES if vectors <= limit)


def vectors(count: int, itemsize: int) -> int:
    """16-byte vectors of `count` values."""
    return -(-count * itemsize // 16)


def handled(algorithm: str, total: int, world_size: int) -> int:
    """Vectors that a rank's threads walk over: all of them, or a rank's share."""
    return total if algorithm == ONE_SHOT else -(-total // world_size)


def slot_bytes_needed(algorithm: str, total: int, world_size: int) -> int:
    """Bytes of a slot that a message of `total` vectors uses."""
    parts = world_size - 1  # a slot has a part for each sender but the rank itself
    if algorithm == ONE_SHOT:
        return parts * total * 16
    return 2 * parts * handled(algorithm, total, world_size) * 16


@cache
def build(file: str, world_size: int, rank: int, dtype: int, **more: int) -> Program:
    """The translation unit of a kernel file for one rank."""
    defines = {"WORLD": world_size, "RANK": rank, "DTYPE": dtype, **more}
    return program(_HERE / f"{file}.cu", defines, headers=(INSTRUCTIONS, _HERE / "lamport.cuh"))


def _watch(arena: Arena) -> tuple[int, int]:
    return arena.record_device, arena.limit_ns


def all_reduce(
    arena: Arena, algorithm: str, dtype: torch.dtype, count: int, shape: Shape | None = None
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A callable (x, out) for messages of `count` values: sums over the ranks, `out` may be `x`."""
    total = vectors(count, dtype.itemsize)
    walk = handled(algorithm, total, arena.world_size)
    chosen = shape or shape_for(walk)
    unit = build("all_reduce", arena.world_size, arena.rank, TYPES[dtype], UNROLL=chosen.unroll)
    kernel = jit.load(unit, algorithm, f"{PEERS}PPQQi{WATCH}", arena.device)
    threads = min(chosen.threads, -(-walk // 32) * 32)
    blocks = (-(-walk // (threads * chosen.unroll)),)
    peers, watch, raw = arena.padded_pointers(), _watch(arena), torch._C._cuda_getCurrentRawStream
    slot_bytes, device = arena.slot_bytes, arena.device

    launch = kernel.bind(blocks, (threads,), programmatic=chosen.programmatic)

    def run(x: torch.Tensor, out: torch.Tensor) -> None:
        source, target = x.data_ptr(), out.data_ptr()
        aligned = 0 if (source | target) & 15 else 1
        launch(raw(device), *peers, source, target, count, slot_bytes, aligned, *watch)

    return run


def block_of(total: int) -> tuple[int, int]:
    """(threads, vectors a thread) of a block that holds a row of `total` vectors."""
    per_thread = -(-total // 1024)
    threads = (total + per_thread - 1) // per_thread
    return (threads + 31) // 32 * 32, per_thread


def qk_vectors(q_size: int, kv_size: int, itemsize: int) -> int:
    """Vectors of a row's Q and K."""
    return vectors(q_size, itemsize) + vectors(kv_size, itemsize)


def qk_rms(
    arena: Arena, dtype: torch.dtype, weight_dtype: torch.dtype, tokens: int, q_size: int, kv_size: int, eps: float
) -> Callable[..., None]:
    """A callable (qkv, q_weight, k_weight, q_out, k_out): norm over the whole width on all ranks."""
    threads, per_thread = block_of(qk_vectors(q_size, kv_size, dtype.itemsize))
    unit = build(
        "qk_rms", arena.world_size, arena.rank, TYPES[dtype], WEIGHT_TYPE=TYPES[weight_dtype], Q_SIZE=q_size,
        K_SIZE=kv_size, PER_THREAD=per_thread,
    )  # fmt: skip
    kernel = jit.load(unit, "qk_rms", f"{PEERS}PPPPPQQQQif{WATCH}", arena.device)
    peers, watch, raw = arena.padded_pointers(), _watch(arena), torch._C._cuda_getCurrentRawStream
    slot_bytes, device = arena.slot_bytes, arena.device
    launch = kernel.bind((tokens,), (threads,), programmatic=tokens <= 256)
    whole = q_size * dtype.itemsize % 16 == 0 and kv_size * dtype.itemsize % 16 == 0
    step = 16 // dtype.itemsize

    def run(qkv, q_weight, k_weight, q_out, k_out) -> None:
        addresses = (qkv.data_ptr(), q_weight.data_ptr(), k_weight.data_ptr(), q_out.data_ptr(), k_out.data_ptr())
        strides = (qkv.stride(0), q_out.stride(0), k_out.stride(0))
        odd = any(a & 15 for a in addresses) or any(s % step for s in strides)
        launch(raw(device), *peers, *addresses, *strides, slot_bytes, int(whole and not odd), eps, *watch)

    return run


def add_rms(
    arena: Arena, dtype: torch.dtype, weight_dtype: torch.dtype, tokens: int, hidden_size: int, eps: float
) -> Callable[..., None]:
    """A callable (x, residual, weight, normed, residual_out): all-reduce, residual add and RMS norm."""
    threads, per_thread = block_of(vectors(hidden_size, dtype.itemsize))
    unit = build(
        "add_rms", arena.world_size, arena.rank, TYPES[dtype], WEIGHT_TYPE=TYPES[weight_dtype], HIDDEN=hidden_size,
        PER_THREAD=per_thread,
    )  # fmt: skip
    kernel = jit.load(unit, "add_rms", f"{PEERS}PPPPPQf{WATCH}", arena.device)
    peers, watch, raw = arena.padded_pointers(), _watch(arena), torch._C._cuda_getCurrentRawStream
    slot_bytes, device = arena.slot_bytes, arena.device
    launch = kernel.bind((tokens,), (threads,), programmatic=tokens <= 256)

    def run(x, residual, weight, normed, residual_out) -> None:
        addresses = tuple(t.data_ptr() for t in (x, residual, weight, normed, residual_out))
        if any(address & 15 for address in addresses):
            raise ValueError("all_reduce_add_rms: a tensor does not start at a multiple of 16 bytes; clone it")
        launch(raw(device), *peers, *addresses, slot_bytes, eps, *watch)

    return run
