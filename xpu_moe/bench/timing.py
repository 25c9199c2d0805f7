"""How long one call takes: CUDA-graph replays on NVIDIA, synchronised batches elsewhere; medians with their spread.

Every method takes a *list* of calls, one for each set of inputs, and goes round it: a kernel that reads weights is
given more sets than the last-level cache holds (`sets_for_cold_cache`), or its figure is the cache's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]
# Seconds of work before the first sample. An idle card runs at a fraction of its clock (an H200: 345 MHz of 1,980, read
# with nvidia-smi) and takes some milliseconds to reach it, which a kernel bound by latency shows in full.
WARM_S = 0.15


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: the median of `rounds` rounds of `calls` calls, and the 10th and 90th percentiles."""

    us: float
    low: float
    high: float
    rounds: int
    calls: int
    method: str

    @staticmethod
    def of(samples: Sequence[float], calls: int, method: str) -> Timing:
        """From one figure a round, in us a call."""
        ordered = sorted(samples)

        def at(fraction: float) -> float:
            return ordered[min(len(ordered) - 1, round(fraction * (len(ordered) - 1)))]

        return Timing(at(0.5), at(0.1), at(0.9), len(ordered), calls, method)


def measure(kind: str, calls: Sequence[Call], *, rounds: int = 20, repeats: int | None = None) -> Timing:
    """Time a call the way that suits the device kind: a graph on cuda, a synchronised batch on xpu and cpu."""
    if kind == "cuda":
        return graph(calls, rounds=rounds, repeats=repeats)
    if kind != "cpu":
        _warm(lambda: [call() for call in calls], lambda: synchronize(kind))
    return eager(kind, calls, rounds=rounds, repeats=repeats)


def graph(calls: Sequence[Call], *, rounds: int = 20, repeats: int | None = None) -> Timing:
    """Replays of one CUDA graph that holds every call `repeats` times (default: about 200 nodes in all).

    The figure is the graph's time over its calls: it includes the gap between two nodes; with programmatic launches
    the start of a call overlaps the end of the one before, so such a figure is a rate.
    """
    repeats = repeats or max(1, 200 // len(calls))
    count = repeats * len(calls)
    return Timing.of(list(replays(calls, rounds, repeats)), count, "cuda graph")


def replays(calls: Sequence[Call], rounds: int, repeats: int = 1, burst: int = 1) -> Iterator[float]:
    """Us a call, of each of `rounds` bursts of `burst` replays of one warm CUDA graph; idle between two bursts."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # the inputs, and calls that share a kernel's state with these
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream, capture_error_mode="thread_local"):
            for _ in range(repeats):
                for call in calls:
                    call()
        _warm(captured.replay, stream.synchronize)
        for _ in range(rounds):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            for _ in range(burst):
                captured.replay()
            end.record(stream)
            end.synchronize()
            yield start.elapsed_time(end) * 1e3 / (burst * repeats * len(calls))


def _warm(batch: Call, wait: Call) -> None:
    """Keep the device busy for WARM_S, at least twice."""
    until, done = time.perf_counter() + WARM_S, 0
    while done < 2 or time.perf_counter() < until:
        batch()
        wait()
        done += 1


def eager(kind: str, calls: Sequence[Call], *, rounds: int = 20, repeats: int | None = None) -> Timing:
    """Wall clock of a batch of calls that ends in a synchronisation: host and device time a call.

    With `repeats` given, the number of calls does not depend on the clock: ranks that time a collective stay in step.
    So it is `measure` that warms a device first.
    """
    for call in calls:
        call()
    synchronize(kind)
    if repeats is None:
        repeats = _batch(kind, calls)
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            for call in calls:
                call()
        synchronize(kind)
        samples.append((time.perf_counter() - start) * 1e6 / (repeats * len(calls)))
    return Timing.of(samples, repeats * len(calls), "wall clock, host and device")


def _batch(kind: str, calls: Sequence[Call], wanted_s: float = 0.01) -> int:
    """Repeats that make one batch last about `wanted_s` seconds."""
    start = time.perf_counter()
    for call in calls:
        call()
    synchronize(kind)
    once = max(time.perf_counter() - start, 1e-7)
    return max(1, min(200, math.ceil(wanted_s / once)))


def synchronize(kind: str) -> None:
    """Wait for the device (nothing to do on a CPU)."""
    if kind != "cpu":
        getattr(torch, kind).synchronize()


def cache_bytes(kind: str) -> int:
    """Bytes of the last-level cache that a benchmark must outrun; 0 where the device does not say."""
    if kind == "cuda":
        return int(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 0))
    if kind == "xpu":
        return int(getattr(torch.xpu.get_device_properties(torch.xpu.current_device()), "last_level_cache_size", 0))
    return 0


def sets_for_cold_cache(set_bytes: int, cache: int, *, factor: float = 2.5, least: int = 2, most: int = 64) -> int:
    """How many sets of `set_bytes` exceed `factor` times the cache, within [least, most]."""
    if set_bytes <= 0:
        return least
    return max(least, min(most, math.ceil(factor * cache / set_bytes)))
