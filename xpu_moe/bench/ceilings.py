"""Bytes a second that the floors of a table divide by."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from xpu_moe import device

# part of the device's name -> (B/s, source). A card that is not here gets its nameplate figure.
_MEASURED: tuple[tuple[str, float, str], ...] = (
    ("H200", 4.3e12, "measured: eager copy of 8.6 GB, bytes read and written; a read-only reduction reaches 4.42e12"),
)


@dataclass(frozen=True)
class Ceiling:
    """Memory bandwidth in B/s and where it comes from; 0 = unknown, and no floor is printed."""

    bandwidth: float
    source: str

    def floor_us(self, moved: float) -> float:
        """The time that `moved` bytes take at least, in us; 0 where the bandwidth is unknown."""
        return moved / self.bandwidth * 1e6 if self.bandwidth else 0.0


def ceiling(kind: str) -> Ceiling:
    """The ceiling of the first device of a kind."""
    if kind == "cpu":
        return _cpu()
    found = device.devices(kind)
    if not found:
        return Ceiling(0.0, f"no {kind} device")
    for part, bandwidth, source in _MEASURED:
        if part in found[0].name:
            return Ceiling(bandwidth, source)
    return Ceiling(found[0].bandwidth, found[0].bandwidth_source or "unknown card")


def _cpu(size: int = 1 << 26) -> Ceiling:
    """Read bandwidth of this machine, measured now: the best of five sums over `size` bytes."""
    values = torch.ones(size // 4, dtype=torch.float32)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        values.sum()
        best = min(best, time.perf_counter() - start)
    return Ceiling(size / best, f"measured now: sum over {size >> 20} MiB, best of 5")
