"""Collectives over NVLink peer memory: one-shot and two-shot all-reduce, fused QK norm, fused residual norm.

`setup(communicator)` on every rank of a group maps the peers' memory; from then on the dispatcher takes these kernels
for the sizes that the table names. `close(communicator)` unmaps it. No NVLink multicast anywhere.
"""

from __future__ import annotations

from typing import Any


def setup(communicator: Any, **options: Any) -> str:
    """Map peer memory for a group (collective). Returns "" or the reason why there is none, the same on every rank."""
    from xpu_moe.cuda.collectives import arena
    from xpu_moe.ops import all_reduce as _  # noqa: F401  (defines the operators whose decisions are dropped)

    try:
        arena.setup(communicator, **options)
    except arena.NoPeerMemory:
        _forget()
        return arena.reason(communicator.name)
    _forget()
    return ""


def close(communicator: Any) -> None:
    """Unmap a group's peer memory (collective)."""
    from xpu_moe.cuda.collectives import arena

    arena.close(communicator)
    _forget()


def algorithms(communicator: Any, dtype: Any, count: int) -> dict[str, Any]:
    """Name -> callable (x, out) of every all-reduce kernel whose slots hold `count` values; to measure thresholds."""
    from xpu_moe.cuda.collectives import arena, launch

    found = arena.find(communicator.name)
    if found is None:
        return {}
    total = launch.vectors(count, dtype.itemsize)
    fits = [
        name for name in (launch.ONE_SHOT, launch.TWO_SHOT)
        if launch.slot_bytes_needed(name, total, found.world_size) <= found.slot_bytes
    ]  # fmt: skip
    return {name: launch.all_reduce(found, name, dtype, count) for name in fits}


def soak(communicator: Any, meet: Any, replays: int) -> dict[str, Any]:
    """`replays` checked all-reduces with changing data (collective): what went wrong, and the first and last times."""
    from xpu_moe.cuda.collectives import replay

    return replay.soak(communicator, meet, replays)


def _forget() -> None:
    """Decisions taken before the memory was mapped, or bound to memory that is gone."""
    import importlib

    from xpu_moe.cuda.collectives import backend

    backend.forget()
    for name in ("all_reduce", "all_reduce_add_rms", "qk_rms"):
        importlib.import_module(f"xpu_moe.ops.{name}").forget()
