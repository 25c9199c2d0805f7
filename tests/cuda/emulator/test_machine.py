"""The emulated machine: what it computes is right, and what kernels may not do is refused, however lanes take turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.cuda.emulator.emulator import Fault, Kernel, of, run
from xpu_moe.cuda.compiler import Program

pytestmark = pytest.mark.slow

SEEDS = range(6)
HEAD = """
#include "ptx.cuh"
extern "C" __global__ void k(float* out, const float* in, int n) {
    extern __shared__ __align__(128) u8 memory[];
    float* const shared = (float*)memory;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    (void)shared, (void)warp, (void)lane;
"""


def emulate(
    body: str, *, blocks: int = 1, threads: int = 64, n: int = 64, seed: int = 0, launches: int = 1
) -> torch.Tensor:
    kernel = Kernel(Program("k", HEAD + body + "}"), "k", "PPi")
    out, given = torch.zeros(n), torch.arange(n, dtype=torch.float32)
    one = kernel.launch_of(blocks, threads, (out.data_ptr(), given.data_ptr(), n), 4096)
    run([one] * launches, {"out": of(out, True), "in": of(given)}, seed)
    return out


def test_it_runs_where_the_compiler_fortifies_by_default(tmp_path):
    """As Ubuntu's does: in a process of its own, which would be ended."""
    ours = tmp_path / "g++"
    ours.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -D_FORTIFY_SOURCE=2 "$@"\n')
    ours.chmod(0o755)
    code = (
        "from tests.cuda.emulator.test_machine import emulate\n"
        "assert emulate('__syncthreads(); out[thread] = in[thread];').tolist() == list(range(64))\n"
    )
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "XPU_MOE_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


ONE_BARRIER = """
    const u32 barrier = shared_address(memory + 2048);
    if (thread == 0) barrier_init(barrier, 1), fence_barrier_init();
    __syncthreads();
"""
COPY = "if (thread == 0) barrier_expect(barrier, 256), bulk_copy(shared_address(memory), in, 256, barrier, 0);"

RIGHT = {
    "shuffles and votes": (
        """
        const float far = __shfl_xor_sync(~0u, in[thread], 31);
        const u32 odd = __ballot_sync(~0u, lane & 1);
        out[thread] = odd == 0xAAAAAAAAu && __any_sync(~0u, lane == 7) && !__all_sync(~0u, lane == 7) ? far : -1.f;
        """,
        lambda i: (i // 32 * 32) + 31 - i % 32,
    ),
    "a block's barrier": (
        "shared[thread] = in[thread]; __syncthreads(); out[thread] = shared[63 - thread];",
        lambda i: 63 - i,
    ),
    "lanes after __syncwarp": (
        "shared[thread] = in[thread]; __syncwarp(); out[thread] = shared[thread ^ 1];",
        lambda i: i ^ 1,
    ),
    "a named barrier": (
        """
        if (warp) { shared[lane] = in[thread]; named_arrive<3, 64>(); }
        else { named_sync<3, 64>(); out[lane] = shared[lane]; }
        """,
        lambda i: i + 32 if i < 32 else 0,
    ),
    "a bulk copy": (
        ONE_BARRIER + COPY + "barrier_wait(barrier, 0); out[thread] = shared[63 - thread];",
        lambda i: 63 - i,
    ),
    "two phases of a barrier": (
        """
        const u32 barrier = shared_address(memory + 2048);
        if (thread == 0) barrier_init(barrier, 32), fence_barrier_init();
        __syncthreads();
        if (warp == 0) {
            shared[lane] = 1.f, barrier_arrive(barrier);
            __syncthreads();
            shared[lane] = 2.f, barrier_arrive(barrier);
        } else {
            barrier_wait(barrier, 0);
            out[lane] = shared[lane];
            __syncthreads();
            barrier_wait(barrier, 1);
            out[thread] = shared[lane];
        }
        """,
        lambda i: 1 + i // 32,
    ),
    "atomics": (
        """
        int* const count = (int*)memory;
        if (thread == 0) *count = 0;
        __syncthreads();
        atomicAdd(count, 1);
        __syncthreads();
        out[thread] = *count;
        """,
        lambda i: 64,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_gives_the_same_numbers_in_every_interleaving(name):
    body, wanted = RIGHT[name]
    for seed in SEEDS:
        assert emulate(body, seed=seed).tolist() == [float(wanted(i)) for i in range(64)], seed


WRONG = {
    "outside every tensor": (
        "out[thread + 1] = 0.f;",
        "a store of 4 bytes outside every tensor.*256 bytes behind the start of out",
    ),
    "before a tensor": ("if (thread == 0) out[0] = in[-1];", "a load of 4 bytes outside every tensor"),
    "written but an input": ("((float*)in)[thread] = 0.f;", "in may not be written"),
    "past shared memory": ("shared[1024] = 0.f;", "outside every tensor|past shared memory"),
    "shared memory, by address": (
        "load_shared(shared_address(memory) + 4096);",
        "a load of 16 bytes at shared address 4096",
    ),
    "askew": ("load_shared(shared_address(memory) + 8);", "not aligned"),
    "no barrier between warps": ("shared[thread] = 0.f; out[thread] = shared[63 - thread];", "race in shared memory"),
    "no __syncwarp between lanes": ("shared[thread] = 0.f; out[thread] = shared[thread ^ 1];", "race in shared memory"),
    "a shuffle is no barrier": (
        "shared[thread] = 0.f; __shfl_sync(~0u, 1, 0); out[thread] = shared[thread ^ 1];",
        "race in shared memory",
    ),
    "overwritten while it is read": (
        "shared[thread] = 0.f; __syncthreads(); out[thread] = shared[63 - thread]; shared[thread] = 1.f;",
        "race in shared memory",
    ),
    "read before the copy is waited for": (
        ONE_BARRIER + COPY + "out[thread] = shared[thread];",
        "race in shared memory: .*a copy",
    ),
    "a copy over what others still read": (
        ONE_BARRIER + "if (thread >= 32) out[thread] = shared[lane];" + COPY + "barrier_wait(barrier, 0);",
        "race in shared memory",
    ),
    "a copy askew": (
        ONE_BARRIER + "if (thread == 0) bulk_copy(shared_address(memory), in + 1, 16, barrier, 0);",
        "wanted multiples of 16",
    ),
    "a copy past its tensor": (
        ONE_BARRIER + "if (thread == 0) bulk_copy(shared_address(memory), in + 60, 32, barrier, 0);",
        "a bulk copy of 32 bytes outside every tensor",
    ),
    "a copy that nobody waits for": (ONE_BARRIER + COPY, "ends with 1 copies under way|^$"),
    "a barrier without a fence": (
        "const u32 barrier = shared_address(memory);"
        "if (thread == 0) barrier_init(barrier, 1), barrier_expect(barrier, 16), "
        "bulk_copy(barrier + 16, in, 16, barrier, 0);",
        "without a fence",
    ),
    "a barrier that another warp has yet to make": (
        "const u32 barrier = shared_address(memory);"
        "if (thread == 0) barrier_init(barrier, 1); if (thread == 32) barrier_arrive(barrier);",
        "not made yet|race in shared memory",
    ),
    "too many arrivals": (ONE_BARRIER + "barrier_expect(barrier, 16); barrier_expect(barrier, 16);", "more arrivals"),
    "lanes apart": ("if (lane == 0) __syncwarp(); else __ballot_sync(~0u, 1);", "lanes of a warp meet in"),
    "half a warp": ("if (lane < 16) __syncwarp(); ", "have left|nobody goes on"),
    "for ever, at a barrier": (ONE_BARRIER + "barrier_wait(barrier, 0);", "nobody goes on(.|\n)*mbarrier 2048"),
    "for ever, looking again": (
        "Spin spin; while (__all_sync(~0u, out[0] == 0.f)) spin.once();",
        "nobody goes on(.|\n)*somebody else",
    ),
    "one warp too few": ("if (warp) named_sync<2, 64>();", "nobody goes on(.|\n)*bar.sync"),
    "an arrival that nobody waits for": ("if (warp) named_arrive<2, 64>();", "ends with 32 threads at named barrier 2"),
    "another lane's stack": (
        "float own = 1.f; *(float* volatile*)(memory + 8 * thread) = &own; __syncwarp();"
        "**(float* volatile*)(memory + 8 * (thread ^ 1)) = 2.f;",
        "local memory of another lane",
    ),
}


@pytest.mark.parametrize("name", [name for name in WRONG if name != "a copy that nobody waits for"])
def test_what_is_wrong_is_refused_in_every_interleaving(name):
    body, said = WRONG[name]
    for seed in SEEDS:
        with pytest.raises(Fault, match=said):
            emulate(body, seed=seed)


def test_a_block_that_ends_with_a_copy_under_way_is_found_by_some_seed():
    body, _ = WRONG["a copy that nobody waits for"]
    said = []
    for seed in range(40):
        try:
            emulate(body, seed=seed)
        except Fault as fault:
            said.append(str(fault))
    assert said and all("ends with 1 copies under way" in text for text in said)


CHAIN = """
    {start}
    wait_for_predecessor();
    const float before = out[thread];
    __syncthreads();
    out[thread] = before * 2.f + 1.f;
"""


@pytest.mark.parametrize("start", ("let_successor_start();", ""))
def test_launches_that_overlap_wait_for_the_one_before(start):
    for seed in SEEDS:
        assert emulate(CHAIN.format(start=start), seed=seed, launches=4).tolist() == [15.0] * 64


def test_a_launch_that_does_not_wait_is_found_by_some_seed():
    body = CHAIN.format(start="let_successor_start();").replace("wait_for_predecessor();", "")
    assert any(emulate(body, seed=seed, launches=4).tolist() != [15.0] * 64 for seed in range(20))


def test_equal_seeds_give_equal_runs_and_others_differ():
    kernel = Kernel(Program("k", HEAD + "__syncthreads(); out[thread] = (float)clock64(); }"), "k", "PPi")

    def times(seed: int) -> list[float]:
        out = torch.zeros(64)
        run([kernel.launch_of(1, 64, (out.data_ptr(), 0, 0), 4096)], {"out": of(out, True)}, seed)
        return out.tolist()

    assert times(3) == times(3) != times(4)
