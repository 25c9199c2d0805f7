"""Run a function on several gloo ranks of this host and return what each of them returned."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_ranks(world: int, function: Callable, *arguments: Any, timeout_s: float = 60.0) -> list[Any]:
    """`function(rank, world, *arguments)` on every rank of a gloo group; raises with the text of a rank that failed."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        address = f"file://{Path(folder) / 'store'}"
        queue = context.Queue()
        ranks = [
            context.Process(target=_one, args=(queue, rank, world, address, function, arguments), daemon=True)
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        try:
            answers = dict([queue.get(timeout=timeout_s) for _ in ranks])
        finally:
            for process in ranks:
                process.join(timeout=5)
                if process.is_alive():
                    process.kill()
                    process.join()
    for rank, (text, _) in sorted(answers.items()):
        assert not text, f"rank {rank}: {text}"
    return [answers[rank][1] for rank in range(world)]


def _one(queue, rank: int, world: int, address: str, function: Callable, arguments: tuple) -> None:
    import torch

    from xpu_moe.comm import group as groups

    torch.set_num_threads(1)
    try:
        groups.init("cpu", rank, world, address=address, timeout_s=30)
        answer = function(rank, world, *arguments)
        groups.default().barrier()
        queue.put((rank, ("", answer)))
    except BaseException:
        queue.put((rank, (traceback.format_exc(), None)))
    finally:
        groups.close()
