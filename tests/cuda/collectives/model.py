"""The Lamport exchange of lamport.cuh in plain Python, one word at a time, under any interleaving.

Every rank runs a sequence of calls. A call of one word a peer: push the own value into each peer's slot, poll the own
slot until every peer's word has arrived, clear what was read, add in rank order. A store to a peer arrives at any later
time, in any order; a rank's next call starts when its call has ended (stream order), stores of that call to its *own*
memory included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

EMPTY = None


class Overwritten(AssertionError):
    """A word arrived on top of one that nobody had read."""


@dataclass
class Rank:
    world: int
    slots: int
    calls: int
    memory: list[list[int | None]] = field(default_factory=list)
    call: int = 0
    pushed: int = 0
    got: dict[int, int] = field(default_factory=dict)
    sums: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = [[EMPTY] * self.world for _ in range(self.slots)]


def value(rank: int, call: int) -> int:
    """What a rank contributes to a call."""
    return 1000 * (call + 1) + rank


def run(world: int, calls: int, slots: int, choose: Callable[[int], int], words: int = 1) -> list[list[int]]:
    """Run to the end, `choose(n)` picking one of n possible steps each time. Returns every rank's sums.

    Raises Overwritten, and AssertionError when no step is left though a rank is not done (a deadlock).
    """
    ranks = [Rank(world, slots, calls) for _ in range(world)]
    flying: list[tuple[int, int, int, int]] = []  # (to, slot, from, value)
    while True:
        steps: list[Callable[[], None]] = [lambda i=i: _arrive(ranks, flying, i) for i in range(len(flying))]
        steps += [step for me in range(world) for step in _own_steps(ranks, flying, me)]
        if not steps:
            break
        steps[choose(len(steps))]()
    assert all(rank.call == calls for rank in ranks), "deadlock: no step is left"
    return [rank.sums for rank in ranks]


def _arrive(ranks: list[Rank], flying: list[tuple[int, int, int, int]], index: int) -> None:
    to, slot, sender, what = flying.pop(index)
    if ranks[to].memory[slot][sender] is not EMPTY:
        raise Overwritten(f"rank {to}, slot {slot}: word of rank {sender} not read yet")
    ranks[to].memory[slot][sender] = what


def _own_steps(ranks: list[Rank], flying: list[tuple[int, int, int, int]], me: int) -> list[Callable[[], None]]:
    rank = ranks[me]
    if rank.call == rank.calls:
        return []
    peers = [p for p in range(rank.world) if p != me]
    slot = rank.call % rank.slots
    if rank.pushed < len(peers):
        return [lambda: _push(rank, flying, me, peers[rank.pushed], slot)]
    return [
        lambda p=p: _read(rank, me, p, slot) for p in peers if p not in rank.got and rank.memory[slot][p] is not EMPTY
    ]


def _push(rank: Rank, flying: list[tuple[int, int, int, int]], me: int, peer: int, slot: int) -> None:
    flying.append((peer, slot, me, value(me, rank.call)))
    rank.pushed += 1


def _read(rank: Rank, me: int, peer: int, slot: int) -> None:
    rank.got[peer] = rank.memory[slot][peer]  # type: ignore[assignment]
    rank.memory[slot][peer] = EMPTY
    if len(rank.got) == rank.world - 1:
        rank.got[me] = value(me, rank.call)
        rank.sums.append(sum(rank.got[r] for r in range(rank.world)))
        rank.got, rank.pushed, rank.call = {}, 0, rank.call + 1
