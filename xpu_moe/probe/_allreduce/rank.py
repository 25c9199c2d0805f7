"""One rank: `python -m xpu_moe.probe._allreduce.rank PLAN RANK LOCAL_RANK EVENTS_FD PARENT_PID STACK_FILE`.

It measures and reports every phase that it enters to the parent, as JSON lines through a pipe; it decides nothing. It
dies with its parent. SIGUSR1 writes its Python stack into a file, also from inside a collective that never returns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from xpu_moe.probe._allreduce import faults
from xpu_moe.probe._allreduce.plan import Plan, Step
from xpu_moe.probe._watch.child import Events, be_watched


class Ranks:
    """The meeting of the ranks, the steps, and what is measured in each."""

    def __init__(self, plan: Plan, rank: int, local_rank: int, events: Events) -> None:
        self.plan, self.rank, self.local_rank, self.events = plan, rank, local_rank, events
        self.fault = faults.parse(plan.inject)
        self.joined = plan.address == "env://"
        self.refused = ""  # why a capture was refused: it is not tried again

    def enter(self, phase: str, step: Step | None = None) -> None:
        self.events.emit("phase", phase=phase, step=step.name if step else "")
        if phase != "timed":  # that one strikes in the middle of its loop
            self.fault.strike(phase, self.rank)

    def meet(self) -> None:
        """Load torch, say what library it holds, form the group, and agree on the library."""
        self.enter("start")
        import torch

        from xpu_moe.comm import group as groups
        from xpu_moe.probe._allreduce.library import identify

        if self.plan.kind == "cpu":
            torch.set_num_threads(1)
        library = identify(self.plan.backend)
        if self.fault.has("version", self.rank):
            library = {**library, "version": "0.0.0-other"}
        self.events.emit("hello", library=library, torch=torch.__version__, dumps=True)
        self.enter("init")
        # Later than the parent loses patience, in the start too: it names who stands still, we could only name whom
        # we waited with.
        patience = max(self.plan.timeout_s, self.plan.start_timeout_s) + 15
        self.communicator = groups.init(
            self.plan.kind, self.rank, self.plan.world, address=self.plan.address, backend=self.plan.backend,
            local_rank=self.local_rank, timeout_s=patience,
        )  # fmt: skip
        self.device = torch.device(self.plan.kind, self.local_rank) if self.plan.kind != "cpu" else torch.device("cpu")
        self._agree(f"{library['name']} {library['version']}")

    def _agree(self, library: str) -> None:
        """Every rank must run the same library: two versions in one group hang or corrupt."""
        store = _store()
        store.set(f"library/{self.rank}", library)
        for other in range(self.plan.world):
            theirs = store.get(f"library/{other}").decode()
            if theirs != library:
                raise RuntimeError(f"rank {self.rank} runs {library}, rank {other} runs {theirs}")

    def measure(self, index: int, step: Step) -> None:
        """One step: warm up, check exactly with changed inputs, time, replay as a graph."""
        import torch

        from xpu_moe.comm.ops import ProcessGroup

        dtype = getattr(torch, step.dtype)
        x = torch.zeros(step.bytes // dtype.itemsize, dtype=dtype, device=self.device)
        reduce_ = ProcessGroup().run

        def call() -> torch.Tensor:
            out = x if step.form == "in_place" else torch.empty_like(x)
            reduce_(x, world_size=self.plan.world, group=self.communicator.name, out=out)
            return out

        self.enter("warmup", step)
        call()
        self._wait()
        self.enter("check", step)
        wrong = [self._checked(x, call, change) for change in (1, 2)]
        self.enter("timed", step)
        x.zero_()  # sums of zeros stay finite however often they are taken
        times = self._time(call, step)
        graph_us, graph = None, "not asked for"
        if self.plan.graphs:
            self.enter("graph", step)
            graph_us, graph, graph_wrong = self._graph(x, call, step)
            wrong += graph_wrong
        fields = {"wrong": [w for w in wrong if w], "graph_us": graph_us, "graph": graph, "times_us": times}
        if self.joined:
            fields = self._merged(index, fields)
        self.events.emit("measured", index=index, **fields)

    def _checked(self, x: Any, call: Any, change: int, how: str = "eager") -> dict[str, Any] | None:
        """Fill, call, compare: what is wrong, None where nothing is."""
        from xpu_moe.probe._allreduce import data

        data.fill(x, self.rank, self.plan.world, change)
        if self.fault.has("wrong", self.rank):
            x[x.numel() // 2] += 1
        out = call()
        self._wait()
        found = data.wrong(x if out is None else out, self.plan.world, change)
        if found is None:
            return None
        count, first, got, wanted = found
        return {"how": f"{how}, input {change}", "count": count, "first": first, "got": got, "wanted": wanted,
                "rank": self.rank}  # fmt: skip

    def _time(self, call: Any, step: Step) -> list[float]:
        times = []
        for round_ in range(step.rounds):
            if round_ == step.rounds // 2:
                self.fault.strike("timed", self.rank)
            start = time.perf_counter()
            for _ in range(step.calls):
                call()
            self._wait()
            times.append((time.perf_counter() - start) * 1e6 / step.calls)
        return times

    def _graph(self, x: Any, call: Any, step: Step) -> tuple[float | None, str, list[Any]]:
        """(us a call, what happened, wrong data): capture, replay with changed inputs twice, then eager again."""
        from xpu_moe.probe._allreduce import graphs

        if self.refused:
            return None, self.refused, []
        try:
            one, out = graphs.capture(self.plan.kind, call, 1)
        except (RuntimeError, AttributeError) as error:
            self.refused = f"not captured: {str(error).splitlines()[0]}"
            return None, self.refused, []

        def replay() -> Any:
            one.replay()
            return out

        wrong = [self._checked(x, replay, change, "graph replay") for change in (3, 4)]
        wrong.append(self._checked(x, call, 5, "eager after replay"))
        x.zero_()
        many, _ = graphs.capture(self.plan.kind, call, step.calls)
        times = []
        for _ in range(max(3, step.rounds // 4)):
            self._wait()
            start = time.perf_counter()
            many.replay()
            self._wait()
            times.append((time.perf_counter() - start) * 1e6 / step.calls)
        return sorted(times)[len(times) // 2], "replayed", wrong

    def _merged(self, index: int, mine: dict[str, Any]) -> dict[str, Any]:
        """Across hosts the parent sees its own rank only: rank 0 gets everybody's figures through the store."""
        store = _store()
        store.set(f"measured/{index}/{self.rank}", json.dumps(mine))
        if self.rank:
            return mine
        everybody = [json.loads(store.get(f"measured/{index}/{rank}")) for rank in range(self.plan.world)]
        return {
            **mine,
            "wrong": [item for fields in everybody for item in fields["wrong"]],
            "times_us": [max(column) for column in zip(*(fields["times_us"] for fields in everybody))],
            "graph_us": max((f["graph_us"] for f in everybody if f["graph_us"] is not None), default=None),
        }

    def _wait(self) -> None:
        if self.plan.kind != "cpu":
            import torch

            torch.accelerator.synchronize()

    def part(self) -> None:
        """Leave together."""
        from xpu_moe.comm import group as groups

        self.enter("close")
        self.communicator.barrier()
        groups.close()
        self.events.emit("done")


def _store() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def main(argv: list[str]) -> int:
    plan_file, rank, local_rank, fd, parent, stack = argv
    be_watched(int(parent), Path(stack))
    events = Events(int(fd))
    ranks = Ranks(Plan.read(Path(plan_file)), int(rank), int(local_rank), events)
    try:
        ranks.meet()
        for index, step in enumerate(ranks.plan.steps):
            ranks.measure(index, step)
        ranks.part()
    except Exception as error:
        events.emit("error", kind=type(error).__name__, text=str(error)[:2000])
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)  # no destructors: they may wait for ranks that are gone
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
