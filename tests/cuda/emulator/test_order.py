"""Global memory and launches of the emulated machine: when stores are seen, launches side by side, blocks in turn."""

from __future__ import annotations

import pytest
import torch

from tests.cuda.emulator.emulator import Fault, Kernel, of, run
from xpu_moe.cuda.compiler import Program

pytestmark = pytest.mark.slow

SEEDS = range(40)
HEAD = """
#include "ptx.cuh"
extern "C" __global__ void k(u32* out, u32* data, u64* flag) {
    const int lane = threadIdx.x, block = blockIdx.x + STREAM;
    (void)lane, (void)block;
"""
WAIT = "Spin spin; while (load_volatile_u64(flag) != 1) spin.once();"


def emulate(
    body: str, seed: int, *, blocks: int = 2, streams: int = 1, resident: int = 0, own: bool = False
) -> list[int]:
    unit = Program("k", HEAD + body + "}", (("STREAM", "(int)machine::stream()"),))
    kernel = Kernel(unit, "k", "PPP")
    out, data, flag = (torch.zeros(n, dtype=torch.int64) for n in (16, 64, 1))
    arguments = (out.data_ptr(), data.data_ptr(), flag.data_ptr())
    launches = [kernel.launch_of(blocks, 32, arguments, stream=s, resident=resident) for s in range(streams)]
    memory = {"out": of(out, True, 0 if own else -1), "data": of(data, True), "flag": of(flag, True)}
    run(launches, memory, seed)
    return out.view(torch.int32).tolist()


def every(body: str, **more) -> list[list[int]]:
    return [emulate(body, seed, **more) for seed in SEEDS]


HAND_OVER = (
    """
    if (block == 0 && lane == 0) {{ {store} {fence} add_relaxed(flag, 1); }}
    if (block == 1 && lane == 0) {{ """
    + WAIT
    + " out[0] = {load}; }}"
)
STORES = {
    "plain": ("*data = 7;", "*data"),
    "one value": ("store_relaxed(data, make_uint4(7, 7, 7, 7));", "load_relaxed(data).w"),
    "words": ("store_volatile(data, make_uint4(7, 7, 7, 7));", "load_volatile(data).w"),
}  # fmt: skip


@pytest.mark.parametrize("kind", STORES)
def test_a_store_without_a_fence_is_seen_late_by_some_seed_and_one_with_it_never(kind):
    store, load = STORES[kind]
    found = every(HAND_OVER.format(store=store, fence="", load=load))
    assert {out[0] for out in found} == {0, 7}
    found = every(HAND_OVER.format(store=store, fence="__threadfence();", load=load))
    assert {out[0] for out in found} == {7}


def test_a_block_sees_its_own_stores_in_order_and_the_last_one_stays():
    body = """
    if (block == 0 && lane == 0) {
        *data = 1, store_volatile(data, make_uint2(2, 0)), *data = *data + 1;
        store_relaxed(data, make_uint4(4, 0, 0, 0));
        atomicAdd(data, 1u), *data = *data + 1;
        out[0] = *data;
    }
    __syncthreads();
    if (block == 0 && lane == 9) out[1] = *data, data[2] = *data;
    """
    assert all(out[:2] == [6, 6] for out in every(body))


def test_words_of_a_vector_arrive_one_by_one_and_those_of_one_value_together():
    body = """
    if (block == 0 && lane == 0) {{ {}(data, make_uint4(1, 1, 1, 1)); }}
    if (block == 1 && lane == 0) {{
        uint4 v = {{0, 0, 0, 0}};
        Spin spin;
        while ((v.x | v.y | v.z | v.w) == 0) v = {}(data), spin.once();
        out[0] = v.x + v.y + v.z + v.w;
    }}
    """
    assert {out[0] for out in every(body.format("store_volatile", "load_volatile"))} > {4}
    assert {out[0] for out in every(body.format("store_relaxed", "load_relaxed"))} == {4}


def test_a_launch_that_waits_finds_every_store_of_the_one_before():
    body = "let_successor_start(); wait_for_predecessor(); out[lane] = out[lane] * 2 + 1;"
    kernel = Kernel(Program("k", HEAD.replace("STREAM", "0") + body + "}"), "k", "PPP")
    for seed in SEEDS:
        out = torch.zeros(32, dtype=torch.int32)
        run([kernel.launch_of(1, 32, (out.data_ptr(), 0, 0))] * 4, {"out": of(out, True)}, seed)
        assert out.tolist() == [15] * 32


PING_PONG = """
    if (lane == 0)
        for (u32 turn = 0; turn < 6; ++turn) {
            Spin spin;
            if (turn % 2 == block) out[turn] = turn, add_relaxed(flag, 1);
            else while (load_volatile_u64(flag) <= turn) spin.once();
        }
"""


def test_launches_of_two_streams_run_side_by_side_and_those_of_one_do_not():
    assert all(out[:6] == list(range(6)) for out in every(PING_PONG, blocks=1, streams=2))
    kernel = Kernel(Program("k", HEAD.replace("STREAM", "0") + WAIT + "}"), "k", "PPP")
    flag = torch.zeros(1, dtype=torch.int64)
    one = kernel.launch_of(1, 32, (0, 0, flag.data_ptr()))
    with pytest.raises(Fault, match="nobody goes on"):
        run([one, one], {"flag": of(flag)})


def test_memory_of_one_stream_is_refused_to_another():
    with pytest.raises(Fault, match="stream 1, block 0, .* a store of 4 bytes outside every tensor"):
        emulate("out[block] = 1;", 0, blocks=1, streams=2, own=True)


def test_blocks_begin_in_order_as_many_as_fit():
    for first in (0, 1):
        body = (
            f"if (block != {first} && lane == 0) {{ {WAIT} }} if (block == {first} && lane == 0) add_relaxed(flag, 1);"
        )
        if first == 0:
            every(body, blocks=5, resident=1)
            continue
        every(body, blocks=5, resident=2)
        with pytest.raises(Fault, match="nobody goes on"):
            emulate(body, 0, blocks=5, resident=1)


def test_blocks_that_begin_late_have_stacks_and_shared_memory_of_their_own():
    body = "__shared__ u32 room[32]; room[31 - lane] = lane; __syncthreads(); atomicAdd(out + lane, room[lane]);"
    kernel = Kernel(Program("k", HEAD.replace("STREAM", "0") + body + "}"), "k", "PPP")
    out = torch.zeros(32, dtype=torch.int32)
    run([kernel.launch_of(500, 32, (out.data_ptr(), 0, 0), 0, 128, resident=3)], {"out": of(out, True)})
    assert out.tolist() == [500 * (31 - lane) for lane in range(32)]


def test_numbers_of_eight_bits_are_rounded_as_torch_rounds_them():
    body = "const u16 d = e4m3_pair(((float*)data)[2 * lane], ((float*)data)[2 * lane + 1]); out[lane] = d;"
    kernel = Kernel(Program("k", HEAD.replace("STREAM", "0") + body + "}"), "k", "PPP")
    edges = [0.0, -0.0, 448.0, 449.0, 464.0, 465.0, -1e30, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-6, 0.9999 * 2.0**-6]
    halves = [(1 + (2 * i + 1) / 16) * 2.0**e for i in range(4) for e in (-6, 0, 7)]
    given = torch.tensor([*edges, *halves, *torch.randn(40).tolist()])[:64]
    given = torch.cat((given, torch.zeros(64 - len(given))))
    out = torch.zeros(32, dtype=torch.int32)
    run([kernel.launch_of(1, 32, (out.data_ptr(), given.data_ptr(), 0))], {"out": of(out, True), "given": of(given)})
    wanted = given.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).view(32, 2).int()
    assert torch.equal(out, wanted[:, 0] | wanted[:, 1] << 8)
