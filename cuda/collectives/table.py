"""Which all-reduce serves a message, by (architecture, world size, bytes): data, with its reason.

A message larger than the last row goes to the process group's library (NCCL), and the reason says so. An architecture
or world size that nobody measured gets the row marked as an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Up to `one_shot` bytes one trip, up to `two_shot` bytes two trips (0: never), above it the library.

    `qk_tokens` and `norm_bytes` bound the fused QK norm (tokens) and the fused residual norm (bytes of x)."""

    architecture: str
    world_size: int
    one_shot: int
    two_shot: int
    qk_tokens: int
    norm_bytes: int
    source: str


KIB, MIB = 1 << 10, 1 << 20
_ASSUMED = "assumed, not measured"
_TWO_H200 = (
    "2 x H200, 2026-11-29, graph, us of the slowest rank: 6 KiB 2.2 (NCCL 8 to 15), 2 MiB 10 (34), 16 MiB 52 (80), "
    "where the slots end; two trips lose at every size (2 MiB 12.5)"
)
TABLE: tuple[Row, ...] = (
    Row("sm_90", 2, 16 * MIB, 0, 2048, 2 * MIB, _TWO_H200),
    Row("sm_90", 3, 512 * KIB, 8 * MIB, 2048, 256 * KIB, _ASSUMED),
    Row("sm_90", 4, 512 * KIB, 8 * MIB, 2048, 256 * KIB, _ASSUMED),
    Row("sm_90", 5, 256 * KIB, 8 * MIB, 2048, 128 * KIB, _ASSUMED),
    Row("sm_90", 6, 256 * KIB, 8 * MIB, 2048, 128 * KIB, _ASSUMED),
    Row("sm_90", 7, 256 * KIB, 8 * MIB, 2048, 128 * KIB, _ASSUMED),
    Row("sm_90", 8, 256 * KIB, 8 * MIB, 2048, 128 * KIB, _ASSUMED),
)
# Any other architecture with peer access: latency-bound sizes only.
_OTHER = Row("", 0, 32 * KIB, 0, 128, 32 * KIB, "assumed for an architecture that was not measured")


@dataclass(frozen=True)
class Choice:
    """`algorithm` is one_shot | two_shot | library."""

    algorithm: str
    reason: str


def row(architecture: str, world_size: int) -> Row:
    """The row of a machine."""
    for found in TABLE:
        if (found.architecture, found.world_size) == (architecture, world_size):
            return found
    return _OTHER


def choose(architecture: str, world_size: int, size: int) -> Choice:
    """The algorithm for a message of `size` bytes, and why."""
    found = row(architecture, world_size)
    where = f"{architecture}, {world_size} ranks ({found.source})"
    if size <= found.one_shot:
        return Choice("one_shot", f"{size} bytes <= {found.one_shot}: one trip over the link; {where}")
    if size <= found.two_shot:
        return Choice("two_shot", f"{size} bytes <= {found.two_shot}: two trips, fewer bytes; {where}")
    limit = max(found.one_shot, found.two_shot)
    return Choice("library", f"{size} bytes > {limit}: the library moves large messages better; {where}")
