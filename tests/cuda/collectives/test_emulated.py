"""The collective kernels themselves, emulated on a CPU: ranks side by side, each call's words at random later times."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.cuda.collectives.world import BF16, F16, F32, World, any_rank
from tests.cuda.emulator.card import Card
from tests.cuda.emulator.emulator import Fault, of
from xpu_moe.cuda import jit
from xpu_moe.cuda.collectives import launch, replay, table
from xpu_moe.cuda.compiler import Program

pytestmark = pytest.mark.slow

WORLDS = (2, 3, 4, 8)
ONE, TWO = launch.ONE_SHOT, launch.TWO_SHOT


@pytest.fixture
def card(monkeypatch) -> Card:
    return Card(monkeypatch, edit=any_rank)


def calls_in_a_row(world: World) -> None:
    """Kernels, sizes and layouts of a slot in turn, nobody waiting in between."""
    world.all_reduce(ONE, 3072)
    world.all_reduce(TWO, 3073)
    world.add_rms(3, 256)
    world.qk_rms(3, 384, 64)
    world.all_reduce(ONE, 1)
    world.all_reduce(TWO, 9, in_place=True)
    world.qk_rms(2, 384, 64, in_place=True)


@pytest.mark.parametrize("size", WORLDS)
@pytest.mark.parametrize("resident", (0, 1))
def test_calls_in_a_row(card, size, resident):
    """However far a rank is ahead or behind; `resident` 1: one block of a rank at once."""
    card.resident = resident
    for seed in range(6 if size < 8 else 3):
        world = World(card, size)
        calls_in_a_row(world)
        world.synchronize(seed)


def test_every_ranks_own_build(card):
    card.edit = lambda unit: unit
    for seed in range(4):
        world = World(card, 3)
        calls_in_a_row(world)
        world.synchronize(seed)


@pytest.mark.parametrize("size", WORLDS)
@pytest.mark.parametrize("algorithm", (ONE, TWO))
def test_counts_that_fill_no_vector_no_share_and_no_warp(card, size, algorithm):
    """Slots exactly as long as the largest call needs."""
    counts = (1, 7, 8, 9, 8 * size, 8 * size + 1, 255, 257, 8 * 32 * size + 8, 3001)
    world = World(card, size, launch.slot_bytes_needed(algorithm, launch.vectors(max(counts), 2), size))
    for count in counts:
        world.all_reduce(algorithm, count)
    world.synchronize(size)


@pytest.mark.parametrize("dtype", (F16, F32))
@pytest.mark.parametrize("algorithm", (ONE, TWO))
def test_dtypes_unaligned_ends_and_two_vectors_a_thread(card, dtype, algorithm):
    for seed, shape in enumerate((None, launch.Shape(32, 2, True), launch.Shape(64, 2, False))):
        world = World(card, 3)
        for count, shift in ((1029, 0), (1029, 1), (1024, 1), (5, 1), (2048, 0)):
            world.all_reduce(algorithm, count, dtype, shift=shift, shape=shape)
        world.synchronize(seed)


@pytest.mark.parametrize(("dtype", "weights"), ((BF16, F32), (F16, F16), (F32, BF16), (F32, F32)))
def test_norms_of_every_dtype(card, dtype, weights):
    for seed in range(3):
        world = World(card, 4)
        world.add_rms(2, 136, dtype, weights)
        world.qk_rms(2, 72, 24, dtype, weights)
        world.qk_rms(3, 72, 24, dtype, weights, in_place=True)
        world.synchronize(seed)


def test_norms_of_rows_that_fill_no_vector_and_of_long_rows(card):
    world = World(card, 2, 1 << 17)
    world.qk_rms(2, 101, 37)
    world.qk_rms(1, 101, 37, in_place=True)
    world.add_rms(1, 8 * 1030)  # two vectors a thread
    world.qk_rms(1, 8 * 1000, 8 * 40)
    world.add_rms(5, 3072)
    world.qk_rms(5, 1536, 256)
    world.synchronize(4)


def test_every_value_arrives_as_it_is_and_words_of_all_ones_as_another_nan(card):
    for dtype, word in ((BF16, torch.int16), (F16, torch.int16), (F32, torch.int32)):
        xs = [torch.full((96,), -0.0) for _ in range(3)]
        xs[0][3], xs[1][5], xs[2][7:9], xs[0][20:28] = float("inf"), float("nan"), -float("inf"), 3.0
        xs = [x.to(dtype) for x in xs]
        for rank, at in ((0, 32), (1, 40), (2, 50), (1, 95)):
            xs[rank].view(word)[at : at + 7] = -1
        world = World(card, 3)
        for algorithm in (ONE, TWO, ONE):
            world.all_reduce(algorithm, 96, dtype, xs=xs)
        world.synchronize(1)


@pytest.mark.parametrize("call", (1, 2**32 - 2, 2**33 - 2, 2**43 - 8))
def test_calls_beyond_32_bits(card, call):
    world = World(card, 2, call=call)
    calls_in_a_row(world)
    world.synchronize(3)


SHAPES = [(2, ONE, limit * 16 + more) for limit, _ in launch.SHAPES[:2] for more in (0, 16)]
TABLE = [
    (size, table.choose("sm_90", size, row.one_shot + more).algorithm, row.one_shot + more)
    for size, row in ((4, table.row("sm_90", 4)), (8, table.row("sm_90", 8)))
    for more in (0, 2)
]


@pytest.mark.parametrize(("size", "algorithm", "bytes_"), SHAPES + TABLE)
def test_at_the_thresholds_of_the_launch_shapes_and_of_the_table(card, size, algorithm, bytes_):
    card.resident = 16
    world = World(card, size, launch.slot_bytes_needed(algorithm, launch.vectors(bytes_, 1), size))
    world.all_reduce(algorithm, bytes_ // 2)
    world.synchronize(bytes_)


LARGE = ((2, ONE, 65536 * 16), (2, ONE, 65537 * 16), (3, ONE, 768 << 10), (3, TWO, (768 << 10) + 2))


@pytest.mark.soak
@pytest.mark.parametrize(("size", "algorithm", "bytes_"), LARGE)
def test_at_the_large_thresholds(card, size, algorithm, bytes_):
    assert table.choose("sm_90", size, bytes_).algorithm == algorithm
    test_at_the_thresholds_of_the_launch_shapes_and_of_the_table(card, size, algorithm, bytes_)


@pytest.mark.soak
@pytest.mark.parametrize("size", WORLDS)
def test_many_interleavings(card, size):
    for seed in range(100, 130 if size < 8 else 106):
        card.resident = seed % 3
        world = World(card, size)
        for _ in range(2):
            calls_in_a_row(world)
        world.synchronize(seed)


def test_a_replayed_graph_with_changing_inputs_counts_no_wrong_value(card):
    """What `bench collectives --replays` runs: replay.cu writes the inputs and checks the sums, launch after launch."""
    size, count, steps = 3, 300, 8
    for seed in range(4):
        world = World(card, size)
        state = []
        for rank, arena in enumerate(world.arenas):
            zeros = (torch.zeros(count, dtype=BF16), torch.zeros(count, dtype=BF16), torch.zeros(1, dtype=torch.int32))
            x, total, step = (world.tensor(rank, zero, True) for zero in zeros)
            wrong = world.tensor(rank, torch.zeros(1, dtype=torch.int64), True)
            unit = replay.unit(size, rank)
            turn = jit.load(unit, "turn", "PPPPI", rank)
            reduce = launch.all_reduce(arena, ONE, BF16, count)
            for _ in range(steps):
                pointers = (t.data_ptr() for t in (x, total, step, wrong))
                turn.launch((1,), (256,), *pointers, count, stream=rank)
                reduce(x, total)
            state.append((step, wrong, total))
        world.calls = steps
        world.synchronize(seed)
        assert all(step.item() == steps and wrong.item() == 0 for step, wrong, _ in state)
        assert all(bool(total.any()) and torch.equal(total, state[0][2]) for _, _, total in state)


def test_a_rank_that_never_comes_is_named_in_the_record(card):
    world = World(card, 3, limit_ns=1000)
    world.all_reduce(ONE, 64)
    world.calls, world.card.launches = 0, [one for one in card.launches if one.stream != 1]
    with pytest.raises(Fault, match="stream [02], .*trap"):
        card.synchronize(world.memory, patience=1 << 20)
    rank = next(rank for rank in (0, 2) if world.records[rank][0])
    set_, waiting, peer, slot, offset, waited = world.records[rank][:6]
    assert (set_, waiting, peer, slot) == (1, rank, 1, 0) and waited > 1000
    part = 1 if rank == 2 else 0  # of sender 1 in this rank's slot
    assert offset // (8 * 16) == part


# ---- the tests can fail
def change(unit: Program, edits: dict[str, str]) -> Program:
    """The program with every `old` become `new`, wherever it stands; each must stand somewhere."""
    texts = {"": unit.text, **dict(unit.headers)}
    for old, new in edits.items():
        assert any(old in text for text in texts.values()), old
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    text = texts.pop("")
    return any_rank(dataclasses.replace(unit, text=text, headers=tuple(texts.items())))


SLOT = "(int)(((u32)(call >> 32) % 3 + (u32)call % 3) % 3)"
ALL_FOUR = "v.x != EMPTY && v.y != EMPTY && v.z != EMPTY && v.w != EMPTY"
ASKED = "    const int slot = slot_of_call(arena);"
FIRST, LAST = "(u64)blockIdx.x * ", "(u64)(RANK == 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * "
ROOM = "room[threadIdx.x / 32] = value;"
OTHERS = "for (int peer = 1; peer < WORLD; ++peer) {"
PLANTED = {  # what stands in the source -> what becomes of it
    "one slot": {SLOT: "(int)(call & 0)"},
    "what was read is not cleared": {"if (peer != RANK && wanted(peer)) clear(": "if (false) clear("},
    "only the first word is looked at": {ALL_FOUR: "v.x != EMPTY"},
    "nothing is waited for": {"while (missing >= 0);": "while (false);"},
    "all ones are sent as they are": {"word == EMPTY ? NOT_EMPTY : word": "word"},
    "the own part comes first": {
        "widen<DTYPE>(from[0], total);": "widen<DTYPE>(from[RANK], total);",
        OTHERS: f"{OTHERS.replace('= 1', '= 0')} if (peer == RANK) continue;",
    },
    "the call before is not waited for": {"wait_for_predecessor();\n": "\n"},
    "a block counts itself before it asks for the number": {ASKED: f"    done(arena);\n{ASKED}"},
    "a launch is counted once too often": {"TICKETS - (gridDim.x - 1)": "TICKETS - (gridDim.x - 2)"},
    "the two areas of a slot are one": {"sums = start + PARTS * stride": "sums = start"},
    "the part of another sender": {"part_of(RANK, peer) * stride": "part_of(peer, RANK) * stride"},
    "slots that begin too late": {"HEADER + slot * slot_bytes": "HEADER + slot * slot_bytes + 16"},
    "blocks of one rank in another order": {FIRST: LAST},
    "warps read sums that are not there": {f"{ROOM}\n    __syncthreads();": ROOM},
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(monkeypatch, name):
    resident = 1 if name.startswith("blocks of one rank") else 0
    card = Card(monkeypatch, edit=lambda unit: change(unit, PLANTED[name]), resident=resident)
    ones = [torch.full((3000,), -1, dtype=torch.int32).view(F32)] * 3 if name.startswith("all ones") else None

    def calls(seed: int) -> None:
        world = World(card, 3, launch.slot_bytes_needed(ONE, launch.vectors(3000, 4), 3))
        for turn in range(5):
            if name.startswith("warps"):
                world.add_rms(2, 1024)
            else:
                world.all_reduce((ONE, TWO)[turn % 2], 3000, F32, xs=ones, shape=launch.Shape(64, 1, True))
        world.synchronize(seed)

    with pytest.raises(AssertionError):
        for seed in range(12):
            calls(seed)


def test_two_slots_would_do(monkeypatch):
    card = Card(monkeypatch, edit=lambda unit: change(unit, {SLOT: "(int)(call % 2)"}))
    for seed in range(30):
        world = World(card, 3)
        for turn in range(8):
            world.all_reduce((ONE, TWO)[turn % 2], 2000, shape=launch.Shape(64, 1, True))
        world.synchronize(seed)


ROOM_OF_K = "room[1][threadIdx.x / 32] = k;"
QK_PLANTED = {
    "warps' sums are read before they are there": {f"{ROOM_OF_K}\n    __syncthreads();": ROOM_OF_K},
    "scales are read before they are there": {"    __syncthreads();\n    #pragma unroll": "    #pragma unroll"},
    "what was read is not cleared": {"clear(at, got);": ""},
    "one of two words is looked at": {"return v.x != EMPTY && v.y != EMPTY;": "return v.x != EMPTY;"},
}


@pytest.mark.parametrize("name", QK_PLANTED)
def test_planted_bugs_in_the_norm_of_q_and_k_are_found(monkeypatch, name):
    card = Card(monkeypatch, edit=lambda unit: change(unit, QK_PLANTED[name]))

    def calls(seed: int) -> None:
        world = World(card, 3)
        for _ in range(5):
            world.qk_rms(2, 600, 72)
        world.synchronize(seed)

    with pytest.raises(AssertionError):
        for seed in range(12):
            calls(seed)


def test_memory_of_the_emulated_ranks_is_their_own(card):
    """The harness itself: rank 1's kernel may not read what is rank 0's."""
    world = World(card, 2)
    x = world.tensor(0, torch.zeros(64, dtype=BF16), True)
    for arena in world.arenas:
        launch.all_reduce(arena, ONE, BF16, 64)(x, x)
    with pytest.raises(Fault, match="stream 1, .* outside every tensor"):
        card.synchronize(world.memory | {"x": of(x, True, 0)})
