"""Long replays: a captured graph of all-reduces whose data change every time and whose every sum is checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from xpu_moe.cuda import jit
from xpu_moe.cuda.collectives import arena as arenas
from xpu_moe.cuda.collectives import launch

_NODES = 500  # all-reduces in one graph


def unit(world_size: int, rank: int) -> jit.Program:
    """The kernel between two all-reduces of a replay."""
    defines = {"WORLD": world_size, "RANK": rank}
    return jit.program(Path(__file__).with_name("replay.cu"), defines, headers=(jit.INSTRUCTIONS,))


def soak(communicator: Any, meet: Callable[[], None], replays: int, count: int = 3072) -> dict[str, Any]:
    """`replays` one-shot all-reduces of `count` bf16 values, in graph replays: {all_reduces, wrong, seconds, …}.

    Collective. `wrong` counts wrong values over all ranks; the time of the first and of the last tenth shows a drift.
    """
    arena = arenas.find(communicator.name)
    if arena is None:
        return {"all_reduces": 0, "wrong": 0, "reason": arenas.reason(communicator.name)}
    turn = jit.load(unit(communicator.world_size, communicator.rank), "turn", "PPPPI", arena.device)
    x = torch.zeros(count, dtype=torch.bfloat16, device="cuda")
    total = torch.empty_like(x)
    step = torch.zeros(1, dtype=torch.int32, device="cuda")
    wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
    reduce = launch.all_reduce(arena, launch.ONE_SHOT, x.dtype, count)

    def one() -> None:
        turn.launch((1,), (1024,), x.data_ptr(), total.data_ptr(), step.data_ptr(), wrong.data_ptr(), count,
                    stream=jit.stream())  # fmt: skip
        reduce(x, total)

    one()
    meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(_NODES):
            one()
    meet()
    rounds = -(-replays // _NODES)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    started = time.perf_counter()
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    each = [a.elapsed_time(b) * 1e3 / _NODES for a, b in pairwise(marks)]
    tenth = max(1, rounds // 10)
    torch.distributed.all_reduce(wrong)
    return {
        "all_reduces": rounds * _NODES,
        "bytes": count * 2,
        "wrong": int(wrong.item()),
        "seconds": round(seconds, 2),
        "us_first_tenth": round(sorted(each[:tenth])[tenth // 2], 3),
        "us_last_tenth": round(sorted(each[-tenth:])[tenth // 2], 3),
    }
