"""Integer-valued data whose sum over the ranks is exact in every dtype, filled and compared without large temporaries.

Values repeat with the prime period 4093, so that a chunk that lands in the wrong place does not fit; they differ by
rank and by step, so that a result kept from an earlier call does not fit either.
"""

from __future__ import annotations

import torch

PERIOD = 4093
_LARGEST = 256  # largest sum: bfloat16 holds every integer up to it
_SLICE = 1 << 22  # elements compared at a time


def _base(rank: int, world: int, step: int) -> torch.Tensor:
    """int64 [PERIOD]: what `rank` puts in. Ranks beyond the 128th put in zeros, so that any world stays exact."""
    contributing = min(world, _LARGEST // 2)
    if rank >= contributing:
        return torch.zeros(PERIOD, dtype=torch.int64)
    values = max(2, _LARGEST // contributing)
    index = torch.arange(PERIOD, dtype=torch.int64)
    return (index + 1) * (rank * 7919 + step * 104729 + 12345) % 65521 % values


def _spread(target: torch.Tensor, base: torch.Tensor) -> None:
    whole = target.numel() // PERIOD * PERIOD
    target[:whole].view(-1, PERIOD).copy_(base.to(target.dtype))
    target[whole:].copy_(base[: target.numel() - whole].to(target.dtype))


def fill(x: torch.Tensor, rank: int, world: int, step: int) -> None:
    """Put rank's integers of a step into flat `x`."""
    _spread(x, _base(rank, world, step).to(x.device))


def wrong(x: torch.Tensor, world: int, step: int) -> tuple[int, int, float, int] | None:
    """(count, first index, got, wanted) of elements that are not the exact sum over the ranks; None where all are."""
    sums = sum((_base(rank, world, step) for rank in range(world)), torch.zeros(PERIOD, dtype=torch.int64))
    wanted = sums.to(device=x.device, dtype=x.dtype)
    count, first = 0, -1
    span = _SLICE // PERIOD * PERIOD
    for start in range(0, x.numel(), span):
        part = x[start : start + span]
        repeat = wanted.repeat(-(-part.numel() // PERIOD))[: part.numel()]
        bad = (part != repeat).nonzero()
        if bad.numel() and first < 0:
            first = start + int(bad[0])
        count += bad.shape[0]
    return (count, first, float(x[first]), int(sums[first % PERIOD])) if count else None
