"""What is asked of a fabric: patterns both ways, one pair at a time and all at once, then bandwidth.

Buffers are poisoned with the pattern's complement before a copy, so that a copy that did nothing shows.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import numpy

from xpu_moe.probe._p2p.fabric import Fabric, Words
from xpu_moe.verdict import Pair

_COPIES = 8  # a round of the bandwidth measurement
_ROUNDS = 5


def patterns(words: int) -> Iterator[tuple[str, Words]]:
    """(name, uint32 [words]): constants that show stuck bits, an address that shows misplaced data, noise."""
    for value in (0x00000000, 0xFFFFFFFF, 0x55555555, 0xAAAAAAAA):
        yield f"0x{value:08x}", numpy.full(words, value, dtype=numpy.uint32)
    index = numpy.arange(words, dtype=numpy.uint64)
    yield "address", (index * 2654435761 % (1 << 32)).astype(numpy.uint32)
    yield "noise", numpy.random.default_rng(words).integers(0, 1 << 32, words, dtype=numpy.uint32)


def ordered_pairs(fabric: Fabric) -> list[tuple[int, int]]:
    return list(itertools.permutations(fabric.cards, 2))


def measure(fabric: Fabric, size: int, enter: Callable[[str], None]) -> list[Pair]:
    """Every direction between two cards, with buffers of `size` bytes. `enter` hears of each phase."""
    words = size // 4
    found = {}
    for source, target in ordered_pairs(fabric):
        enter(f"{source}>{target} reachable")
        try:
            reachable, says = fabric.reachable(source, target), ""
        except LookupError as error:
            reachable, says = False, str(error)
        enter(f"{source}>{target} data")
        bad = _alone(fabric, source, target, words)
        enter(f"{source}>{target} bandwidth")
        speed = _bandwidth(fabric, source, target, words)
        found[source, target] = Pair(source, target, reachable, not bad, round(speed, 2), bad or says)
    enter("all at once")
    for pair, bad in _together(fabric, words).items():
        if bad and found[pair].intact:
            old = found[pair]
            found[pair] = Pair(old.source, old.target, old.reachable, False, old.gb_per_s, bad)
    return list(found.values())


def _alone(fabric: Fabric, source: int, target: int, words: int) -> str:
    """What is wrong with one direction, "" where nothing is."""
    zeros = numpy.zeros(words, dtype=numpy.uint32)
    here, there = fabric.buffer(source, zeros), fabric.buffer(target, zeros)
    for name, pattern in patterns(words):
        fabric.write(here, pattern)
        fabric.write(there, ~pattern)
        fabric.wait()
        fabric.copy(here, there)
        fabric.wait()
        bad = _difference(fabric.read(there), pattern)
        if bad:
            return f"pattern {name}: {bad}"
    return ""


def _together(fabric: Fabric, words: int) -> dict[tuple[int, int], str]:
    """All directions at the same time, each with its own data: what is wrong, by direction."""
    kinds = dict(patterns(words))
    found: dict[tuple[int, int], str] = {}
    for name in ("address", "noise"):
        ways = {}
        for number, (source, target) in enumerate(ordered_pairs(fabric)):
            pattern = numpy.roll(kinds[name], number + 1)
            ways[source, target] = (fabric.buffer(source, pattern), fabric.buffer(target, ~pattern), pattern)
        fabric.wait()
        for here, there, _ in ways.values():
            fabric.copy(here, there)
        fabric.wait()
        for pair, (_, there, pattern) in ways.items():
            bad = _difference(fabric.read(there), pattern)
            if bad:
                found.setdefault(pair, f"all directions at once, pattern {name}: {bad}")
    return found


def _bandwidth(fabric: Fabric, source: int, target: int, words: int) -> float:
    """GB/s of copies back to back, the best of some rounds."""
    zeros = numpy.zeros(words, dtype=numpy.uint32)
    here, there = fabric.buffer(source, zeros), fabric.buffer(target, zeros)
    best = 0.0
    for _ in range(_ROUNDS):
        fabric.wait()
        start = time.perf_counter()
        for _ in range(_COPIES):
            fabric.copy(here, there)
        fabric.wait()
        best = max(best, _COPIES * words * 4 / (time.perf_counter() - start) / 1e9)
    return best


def _difference(got: Words, wanted: Words) -> str:
    wrong = numpy.nonzero(got != wanted)[0]
    if not len(wrong):
        return ""
    first = int(wrong[0])
    values = f"{got[first]:#010x} for {wanted[first]:#010x}"
    return f"{len(wrong)} of {len(wanted)} words differ, the first at {first}: {values}"
