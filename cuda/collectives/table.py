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
_TWO_H200 = (
    "2 x H200, 2026-11-29, graph, us of the slowest rank: 6 KiB 2.2 (NCCL 8 to 15), 2 MiB 10 (34), 16 MiB 52 (80), "
    "where the slots end; two trips lose at every size (2 MiB 12.5)"
)
# NCCL's smaller figure is its probe's, in graphs of 20 calls. How the norm's limit follows from the readings:
# docs/measurements/h200-x4-collectives.md.
_FOUR_H200 = (
    "4 x H200, 2026-11-29, graph, us of the slowest rank, one trip / two (NCCL): 6 KiB 2.5 / 4.2 (13 to 26), 256 KiB "
    "4.7 / 5.3 (25), 512 KiB 7.3 / 6.2 (16 to 29), 2 MiB 22 / 13 (33), 8 MiB - / 43 (62); two trips fill a slot at "
    "10.7 MiB; norm in the same launch: 96 KiB 4.4, 1.5 MiB 18, where two trips and torch's norm should take 16"
)
# The readings of 2 and 4 ranks lie on two lines (us, KB), within 0.8 us up to 1 MiB and 15 % above; 320 GB/s leave a
# card, however many peers share them:
#   one trip 2 + (n - 1) KB / 320, two trips 3.9 + 2 (n - 1) / n KB / 320.
# For four ranks they cross at 396 KiB, the readings at 348: other worlds take 0.88 of their crossing, rounded down, and
# the fused norm up to where one trip is 3.7 us behind. Two trips and NCCL move the same bytes: that limit stays.
_ASSUMED = "assumed, not measured: the lines through the readings of 2 and 4 ranks"
TABLE: tuple[Row, ...] = (
    Row("sm_90", 2, 16 * MIB, 0, 2048, 2 * MIB, _TWO_H200),
    Row("sm_90", 3, 768 * KIB, 8 * MIB, 2048, 2 * MIB, _ASSUMED),
    Row("sm_90", 4, 256 * KIB, 8 * MIB, 2048, 1 * MIB, _FOUR_H200),
    Row("sm_90", 5, 192 * KIB, 8 * MIB, 2048, 640 * KIB, _ASSUMED),
    Row("sm_90", 6, 128 * KIB, 8 * MIB, 2048, 448 * KIB, _ASSUMED),
    Row("sm_90", 7, 112 * KIB, 8 * MIB, 2048, 352 * KIB, _ASSUMED),
    Row("sm_90", 8, 96 * KIB, 8 * MIB, 2048, 288 * KIB, _ASSUMED),
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
