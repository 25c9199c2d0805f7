"""The exchange protocol: right sums and no overwritten word under any interleaving; what too few slots would do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.collectives.model import Overwritten, run, value
from xpu_moe.cuda.collectives import arena


def wanted(world: int, calls: int) -> list[list[int]]:
    return [[sum(value(r, c) for r in range(world)) for c in range(calls)]] * world


@given(world=st.integers(2, 5), calls=st.integers(1, 8), seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_three_slots_give_the_right_sums_whatever_the_interleaving(world, calls, seed):
    draw = random.Random(seed)
    assert run(world, calls, 3, draw.randrange) == wanted(world, calls)


def test_host_and_kernels_have_the_three_slots_of_the_model():
    source = (Path(arena.__file__).parent / "lamport.cuh").read_text(encoding="utf-8")
    assert "constexpr int SLOTS = 3;" in source and arena.SLOTS == 3
    assert "% 3" in source, "the slot of a call"


@given(choices=st.lists(st.integers(0, 1 << 16), max_size=400))
@settings(max_examples=150, deadline=None)
def test_adversarial_schedules_of_two_ranks(choices):
    steps = iter(choices)
    assert run(2, 6, 3, lambda n: next(steps, 0) % n) == wanted(2, 6)


def test_newest_first_is_the_worst_order_of_arrival_and_still_right():
    assert run(4, 12, 3, lambda n: n - 1) == wanted(4, 12)


def test_one_slot_would_be_overwritten():
    """The model can fail: with one slot a fast peer's next word lands on an unread one."""
    failures = 0
    for seed in range(200):
        try:
            run(3, 6, 1, random.Random(seed).randrange)
        except Overwritten:
            failures += 1
    assert failures > 0


@pytest.mark.parametrize("world", (2, 8))
def test_slots_come_round_with_the_call_number_beyond_32_bits(world):
    """The kernel's modulo 3 of a 64-bit call number, by halves."""
    for call in (0, 1, 2, 2**32 - 1, 2**32, 2**32 + 1, 2**43 + 5):
        assert ((call >> 32) % 3 + (call & 0xFFFFFFFF) % 3) % 3 == call % 3


@given(grids=st.lists(st.integers(1, 1000), min_size=1, max_size=20), seed=st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_every_block_reads_the_same_call_number_whenever_it_starts(grids, seed):
    """`ticket`: a block reads before it adds; block 0 adds what makes a launch worth 2^20."""
    unit, ticket, draw = 1 << 20, 0, random.Random(seed)
    for call, grid in enumerate(grids):
        started: list[int] = []
        waiting = list(range(grid))
        while waiting or started:
            if waiting and (not started or draw.random() < 0.5):
                block = waiting.pop(0)
                assert ticket // unit == call
                started.append(block)
            else:
                block = started.pop(draw.randrange(len(started)))
                ticket += unit - (grid - 1) if block == 0 else 1
    assert ticket == unit * len(grids)
