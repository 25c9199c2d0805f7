"""The means of one rank of `bench collectives`: who it is, and what all ranks agree on."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from xpu_moe.bench import timing
from xpu_moe.comm import group as groups


class Means:
    """A rank, its device, and figures taken over all ranks."""

    def __init__(self, job: dict[str, Any], communicator: groups.Communicator) -> None:
        self.job, self.who = job, communicator
        self.kind = job["kind"]
        self.rounds = job["rounds"]
        self.dtype = getattr(torch, job["dtype"])
        self.device = torch.device(self.kind, communicator.rank) if self.kind != "cpu" else torch.device("cpu")

    def slowest(self, found: timing.Timing) -> timing.Timing:
        """The figures of the slowest rank."""
        figures = torch.tensor([found.us, found.low, found.high], dtype=torch.float64, device=self.device)
        dist.all_reduce(figures, op=dist.ReduceOp.MAX)
        us, low, high = figures.tolist()
        return timing.Timing(us, low, high, found.rounds, found.calls, found.method)

    def worst(self, value: float) -> float:
        """The largest of a figure over the ranks."""
        figure = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(figure, op=dist.ReduceOp.MAX)
        return figure.item()

    def meet(self) -> None:
        """All ranks, devices idle."""
        timing.synchronize(self.kind)
        self.who.barrier()
        timing.synchronize(self.kind)
