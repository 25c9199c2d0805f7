"""One rank of `bench collectives`: started by it, prints rows as JSON lines on rank 0's stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from xpu_moe.bench import _collective_cases as cases
from xpu_moe.bench import timing
from xpu_moe.bench._means import Means
from xpu_moe.bench.report import Row
from xpu_moe.comm import group as groups
from xpu_moe.comm import peers
from xpu_moe.env import read
from xpu_moe.probe._watch.child import die_with

# Clock ticks a node for which the device is held back: some 20 us. A library's nodes carry 4 KiB of arguments, and a
# slow host would otherwise be what is timed.
_HEAD_START = 40_000
_CALLS = ((1 << 19, 100), (4 << 20, 40), (32 << 20, 12))  # (bytes up to, calls in one graph); above: 4
_SHORT = 20  # calls in a rival's other graph: NCCL's small messages were faster in it


def calls_in_graph(size: int) -> int:
    """Calls of `size` bytes in one graph: enough that a rank's late start is lost among them."""
    return next((calls for limit, calls in _CALLS if size <= limit), 4)


class Bench(Means):
    """How a rank checks and times a case."""

    def capture(self, call: timing.Call, count: int) -> Any:
        """A CUDA graph of `count` calls."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        self.meet()
        graph = torch.cuda.CUDAGraph()
        # thread_local: the library's watchdog thread may query events while this thread captures
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(count):
                call()
        return graph

    def graph(self, call: timing.Call, size: int, count: int | None = None) -> timing.Timing:
        """us a call in a graph of `count` calls (on a device without graphs: eager)."""
        if self.kind != "cuda":
            return self.eager(call, size)
        count = count or calls_in_graph(size)
        graph = self.capture(call, count)
        samples = []
        for _ in range(self.rounds + 2):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.meet()
            torch.cuda._sleep(_HEAD_START * count)  # the device starts when the whole graph has been handed over
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            samples.append(start.elapsed_time(end) * 1e3 / count)
        return self.slowest(timing.Timing.of(samples[2:], count, "cuda graph"))

    def rival(self, call: timing.Call, size: int) -> float:
        """us a call of a rival at its best: the lower of a graph as long as ours and of a short one."""
        long = calls_in_graph(size)
        counts = (long,) if self.kind != "cuda" or long <= _SHORT else (long, _SHORT)
        return min(self.graph(call, size, count).us for count in counts)

    def eager(self, call: timing.Call, size: int) -> timing.Timing:
        """us a call, host and device, launches back to back."""
        repeats = 100 if size <= 1 << 19 else 20 if size <= 32 << 20 else 5
        if self.kind == "cpu":
            repeats = 20 if size <= 1 << 17 else 3
        self.meet()
        return self.slowest(timing.eager(self.kind, [call], rounds=max(3, self.rounds // 3), repeats=repeats))

    def checked(self, case: cases.Case) -> dict[str, float]:
        """Deviations over all ranks: eager, replayed with changed inputs, eager again."""
        found: dict[str, float] = {}
        calls: list[timing.Call] = [case.call]
        if self.kind == "cuda":
            graph = self.capture(case.call, 1)
            captured = case.outputs

            def replay() -> None:
                graph.replay()
                case.outputs = captured

            calls += [replay, replay, case.call]
        for turn, call in enumerate([*calls, *calls]):
            case.fill(turn)
            self.meet()
            call()
            timing.synchronize(self.kind)
            for name, value in case.deviations(turn).items():
                found[name] = max(found.get(name, 0.0), self.worst(value))
        found["bits"] = float(len(set(self.bits(case))) - 1)
        return found

    def bits(self, case: cases.Case) -> list[int]:
        """Every rank's fingerprint of what must be the same on all."""
        case.fill_random()
        self.meet()
        case.call()
        print_ = cases.fingerprint(case.shared())
        told: list[Any] = [None] * self.who.world_size
        dist.all_gather_object(told, print_)
        return told

    def row(self, case: cases.Case) -> Row:
        """Check, then time a case and its rivals."""
        errors = self.checked(case)
        case.settle()
        found = self.graph(case.timed, case.size)
        eager = self.eager(case.timed, case.size)
        rivals: dict[str, float | str] = {}
        extra: dict[str, float | str] = {"eager_us": eager.us, "bytes": case.size, **case.notes()}
        for name, call in case.rivals().items():
            if isinstance(call, str):
                rivals[name] = call
                continue
            rivals[name] = self.rival(call, case.size)
            if name == "library":
                extra["library_eager_us"] = self.eager(call, case.size).us
        chosen = case.selection()
        return Row("collectives", case.name, case.shape, found, float(case.size), 0.0, rivals, errors, chosen.name,
                   chosen.reason, extra)  # fmt: skip


def rows(bench: Bench) -> Iterator[Row]:
    """Every case of the job."""
    if bench.job.get("sweep"):
        yield from sweep(bench)
        return
    pool = cases.symmetric_pool(bench, max(bench.job["sizes"]))
    for size in bench.job["sizes"]:
        yield bench.row(cases.AllReduce(bench, size, pool))
    for tokens in bench.job["tokens"]:
        yield bench.row(cases.QkRms(bench, tokens))
    for tokens in bench.job["tokens"]:
        yield bench.row(cases.AddRms(bench, tokens))


def sweep(bench: Bench) -> Iterator[Row]:
    """Every kernel of the device's room at every size, whatever the table says."""
    room = peers.room(bench.who)
    for size in bench.job["sizes"]:
        made = room.algorithms(bench.who, bench.dtype, size // bench.dtype.itemsize) if room else {}
        for name, kernel in made.items():
            yield bench.row(cases.Algorithm(bench, size, name, kernel))


def _library(kind: str) -> str:
    if kind == "cuda":
        mixing = "on" if read.integer("NCCL_GRAPH_MIXING_SUPPORT") else "off"
        return f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, graph mixing {mixing}"
    return groups.backend_for(kind)


def main(argv: list[str]) -> int:
    job, store, parent, rank = json.loads(argv[0]), argv[1], int(argv[2]), int(argv[3])
    die_with(parent)
    who = groups.init(job["kind"], rank, job["world"], address=store, local_rank=rank)

    def say(**what: Any) -> None:
        if rank == 0:
            print(json.dumps(what), flush=True)

    bench = Bench(job, who)
    peer_memory = peers.map_peers(who) or "peer memory mapped"
    card = torch.cuda.get_device_name() if job["kind"] == "cuda" else job["kind"]
    say(
        device=card, world=job["world"], torch=torch.__version__, library=_library(job["kind"]), peer_memory=peer_memory
    )
    for row in rows(bench):
        say(row=row.as_json())
    room = peers.room(who)
    if job["replays"] and room is not None:
        say(replays=room.soak(who, bench.meet, job["replays"]))
    bench.meet()
    peers.unmap_peers(who)
    groups.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
