"""Four gloo ranks of this host that stay up between tests; a test runs a function on the first `world` of them."""

from __future__ import annotations

import atexit
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

LARGEST = 4
MEET_S = 120.0  # four Pythons load torch within it, also where other work has the cores


def run_ranks(world: int, function: Callable, *arguments: Any, timeout_s: float = 2 * MEET_S) -> list[Any]:
    """`function(communicator, *arguments)` on ranks 0..world-1; raises with the text of a rank that failed."""
    inboxes, outbox = _pool()
    for inbox in inboxes[:world]:
        inbox.put((world, function, arguments))
    answers = dict([outbox.get(timeout=timeout_s) for _ in range(world)])
    for rank, (text, _) in sorted(answers.items()):
        assert not text, f"rank {rank}: {text}"
    return [answers[rank][1] for rank in range(world)]


def run_alone(world: int, function: Callable) -> list[Any]:
    """The same on ranks of their own, for a function that spoils its group."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        outbox = context.Queue()
        address = f"file://{Path(folder) / 'store'}"
        ranks = [context.Process(target=_once, args=(r, world, address, function, outbox)) for r in range(world)]
        for process in ranks:
            process.start()
        try:
            answers = dict([outbox.get(timeout=2 * MEET_S) for _ in ranks])
        finally:
            for process in ranks:
                process.kill()
                process.join()
    return [answers[rank] for rank in range(world)]


def _once(rank: int, world: int, address: str, function: Callable, outbox) -> None:
    from xpu_moe.comm import group as groups

    outbox.put((rank, function(groups.init("cpu", rank, world, address=address, timeout_s=MEET_S))))
    outbox.close()
    outbox.join_thread()


@cache
def _pool():
    context = multiprocessing.get_context("spawn")
    folder = tempfile.TemporaryDirectory()
    address = f"file://{Path(folder.name) / 'store'}"
    inboxes, outbox = [context.Queue() for _ in range(LARGEST)], context.Queue()
    ranks = [
        context.Process(target=_work, args=(rank, address, inboxes[rank], outbox), daemon=True)
        for rank in range(LARGEST)
    ]
    for process in ranks:
        process.start()

    def end() -> None:
        for inbox in inboxes:
            inbox.put(None)
        for process in ranks:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        folder.cleanup()

    atexit.register(end)
    return inboxes, outbox


def _work(rank: int, address: str, inbox, outbox) -> None:
    import torch
    import torch.distributed as dist

    from xpu_moe.comm import group as groups

    torch.set_num_threads(1)
    whole = groups.init("cpu", rank, LARGEST, address=address, timeout_s=MEET_S)
    parts = {world: dist.new_group(list(range(world))) for world in range(2, LARGEST)}
    while (job := inbox.get()) is not None:
        world, function, arguments = job
        try:
            communicator = whole if world == LARGEST else groups.adopt(parts[world], timeout_s=MEET_S)
            answer = function(communicator, *arguments)
            communicator.barrier()
            outbox.put((rank, ("", answer)))
        except BaseException:
            outbox.put((rank, (traceback.format_exc(), None)))
    groups.close()
