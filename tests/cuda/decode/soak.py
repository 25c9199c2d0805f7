"""A soak run of the decode kernels: launches of random size, checked on the card, with canaries around everything.

    python -m tests.cuda.decode.soak --runs 100000 --json

Layers of every kind take turns at random, so states of different size alternate. A block is 30 launches a layer on
cells of their own (soak_cells.py), one behind the other without a wait, then a CUDA graph of 8 of them replayed three
times with new inputs. After each, every result is held against a float32 reference on the card (2-norm over the call
at most 1e-2, tokens without a route exactly 0, repeated launches equal in every bit), and every canary against what it
was. A mismatch names what repeats it: `--seed N --only INDEX`. Exit 1 on a mismatch, 2 without a card.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch

from tests.cuda.decode.soak_cells import STYLES, Cells
from tests.cuda.decode.soak_layers import VARIANTS, Layer, Variant
from xpu_moe import streams
from xpu_moe.cuda import compiler, jit
from xpu_moe.cuda.decode import launch
from xpu_moe.cuda.decode.plan import BUCKETS, plan

BOUND = 1e-2
SLOTS = 30  # launches of a layer in a block
GRAPH, REPLAYS = 8, 3
QUEUE = 32  # launches between two pauses
PAUSE = 2_000_000  # clocks, about a millisecond: what follows is queued, and starts while the launch before still runs
REPORTED = 20  # mismatches that are written out

Call = Callable[[Layer, tuple], Callable[[], object]]


@dataclass
class Report:
    """What a run found."""

    seed: int
    runs: int = 0
    seconds: float = 0.0
    prepared_seconds: float = 0.0
    wrong: int = 0
    canaries_touched: int = 0
    worst_error: dict[str, float | None] = field(default_factory=dict)  # None: not finite
    mismatches: list[dict] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.wrong == 0 and self.canaries_touched == 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compile_all(variants: Sequence[Variant], device: int) -> None:
    """Every bucket of every variant, side by side; then loaded, with its state."""
    blocks = torch.cuda.get_device_properties(device).multi_processor_count
    units = [launch.unit(plan(v.shape(), size, blocks)) for v in variants for size in BUCKETS]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda unit: compiler.cubin(unit, jit.architecture(device)), units))
    for v in variants:
        launch.warm(v.shape(), BUCKETS[-1], device)


def kernel(layer: Layer, arguments: tuple) -> Callable[[], object]:
    """The call that is soaked."""
    return layer.call(*arguments)


class Soak:
    """The layers, made once, and the blocks of launches. `call` stands in for the kernel in tests without a card."""

    def __init__(
        self, seed: int, variants: Sequence[Variant] = VARIANTS, device: str = "cuda", call: Call = kernel
    ) -> None:
        started = time.monotonic()
        self.seed, self.device, self.call = seed, device, call
        self.on_card = device != "cpu"
        torch.set_float32_matmul_precision("highest")
        if self.on_card:
            for v in variants:
                for tokens in BUCKETS:
                    support = Layer.backend_of(v).supports(v.case(tokens))
                    assert support.ok, f"{v}, M {tokens}: {support.reason}"
            compile_all(variants, torch.cuda.current_device())
        self.layers = [Layer(v, seed + i, device) for i, v in enumerate(variants)]
        self.launches, self.number = SLOTS * len(self.layers), 0
        self.per_block = self.launches + GRAPH * REPLAYS
        self.report = Report(seed, prepared_seconds=time.monotonic() - started)
        self.report.worst_error = {str(v): 0.0 for v in variants}

    # ---- one block
    def _block(self, number: int) -> tuple[np.random.Generator, list[Cells]]:
        rng = np.random.default_rng((self.seed, number))
        cells = [
            Cells(layer, np.random.default_rng((self.seed, number, i)), SLOTS) for i, layer in enumerate(self.layers)
        ]
        return rng, cells

    def _fill(self, cells: list[Cells], number: int, round_: int) -> None:
        for i, each in enumerate(cells):
            each.fill((self.seed * 1_000_003 + number * 8 + round_) * 64 + i)

    def _make(self, cells: list[Cells], runs: Sequence[int]) -> list[Callable[[], object]]:
        return [self.call(cells[run // SLOTS].layer, cells[run // SLOTS].arguments(run % SLOTS)) for run in runs]

    def _launch(self, calls: list[Callable[[], object]], rng: np.random.Generator) -> None:
        for at, call in enumerate(calls):
            if self.on_card and at % QUEUE == 0 and rng.random() < 0.5:
                torch.cuda._sleep(PAUSE)
            call()

    def _graph(self, calls: list[Callable[[], object]]) -> Callable[[], object]:
        if not self.on_card:
            return lambda: [call() for call in calls]
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            graph.capture_begin()
            for call in calls:
                call()
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)
        return graph.replay

    def block(self, number: int, count: int, only: int | None = None) -> None:
        """The first `count` launches of block `number` (all of them: the graph as well). `only` is a place in the block
        that alone is reported."""
        self.number = number
        rng, cells = self._block(number)
        order = rng.permutation(self.launches).tolist()
        chosen = rng.choice(self.launches, GRAPH, replace=False).tolist()
        first = number * self.per_block
        if only is not None and only < self.launches:
            self._fill(cells, number, 0)
            self._make(cells, [order[only]])[0]()
            self._judge(cells, {order[only]: first + only}, "alone", first + only)
        self._fill(cells, number, 0)
        runs = order[: min(count, self.launches)]
        self._launch(self._make(cells, runs), rng)
        self._judge(cells, {run: first + at for at, run in enumerate(runs)}, "", None if only is None else first + only)
        if count < self.per_block:
            return
        replay = self._graph(self._make(cells, chosen))
        for round_ in range(REPLAYS):
            self._fill(cells, number, 1 + round_)
            replay()
            at = first + self.launches + GRAPH * round_
            known = {run: at + j for j, run in enumerate(chosen)}
            self._judge(cells, known, f"graph, replay {round_ + 1}", None if only is None else first + only)

    # ---- what it found: the one place that waits for the card
    def _judge(self, cells: list[Cells], known: dict[int, int], how: str, only: int | None) -> None:
        ran = torch.zeros(self.launches, dtype=torch.bool)
        ran[list(known)] = True
        ran = ran.to(self.device).view(len(cells), SLOTS)
        verdicts = torch.stack([each.check(ran[i]) for i, each in enumerate(cells)])
        changed = torch.stack([layer.changed() for layer in self.layers])
        error, nonzero, differ, touched = verdicts.cpu().numpy().transpose(1, 0, 2)
        self.report.runs += len(known)
        for i, (each, weights) in enumerate(zip(cells, changed.tolist())):
            name = str(each.layer.variant)
            worst, before = float(error[i].max()), self.report.worst_error[name]
            if before is not None:
                self.report.worst_error[name] = max(worst, before) if np.isfinite(worst) else None
            for slot in np.flatnonzero((error[i] > BOUND) | (nonzero[i] > 0) | (differ[i] > 0)).tolist():
                self.report.wrong += 1
                found = {
                    "error": float(error[i, slot]),
                    "rows_not_0": int(nonzero[i, slot]),
                    "rows_unlike_twin": int(differ[i, slot]),
                }
                self._tell(each, slot, known[i * SLOTS + slot], how, found, only)
            if touched[i, 0] or weights:
                self.report.canaries_touched += int(touched[i, 0]) + weights
                self._tell_canaries(each, i, known, how, int(touched[i, 0]), weights, only)

    def _tell(self, cells: Cells, slot: int, index: int, how: str, found: dict, only: int | None) -> None:
        if (only is not None and index != only) or len(self.report.mismatches) >= REPORTED:
            return
        cell = cells.cells[slot]
        told = {
            "index": index, "seed": self.seed, "layer": str(cells.layer.variant), "tokens": cell.tokens,
            "x_stride": cell.x_stride, "out_stride": cell.out_stride, "routes": STYLES[cell.style],
            "how": how or "eager",
            **{k: v if np.isfinite(v) else "not finite" for k, v in found.items()},
        }  # fmt: skip
        self.report.mismatches.append(told)
        say(f"mismatch: {told}; again: --seed {self.seed} --only {index}")

    def _tell_canaries(self, cells, which: int, known: dict[int, int], how, touched: int, weights: int, only) -> None:
        """Name the launch whose rows of `out` begin last before the first touched byte."""
        ran = [run % SLOTS for run in known if run // SLOTS == which] or [0]
        place = cells.first_touched([slot in ran for slot in range(SLOTS)])
        before = [slot for slot in ran if cells.cells[slot].out_at <= place]
        slot = max(before, key=lambda s: cells.cells[s].out_at) if before else ran[0]
        index = known.get(which * SLOTS + slot, min(known.values()))
        found = {"canaries": touched, "bytes_of_weights": weights, "first_in_out": place}
        self._tell(cells, slot, index, how, found, None if only is None else index)

    def run(self, runs: int, seconds: float | None = None) -> Report:
        """Up to `runs` launches, for up to `seconds`."""
        started = told = time.monotonic()
        number = 0
        while self.report.runs < runs and (seconds is None or time.monotonic() - started < seconds):
            self.block(number, min(self.per_block, runs - self.report.runs))
            number += 1
            self.report.seconds = time.monotonic() - started
            if time.monotonic() - told > 5:
                told = time.monotonic()
                say(f"{self.report.runs} of {runs} runs, {told - started:.0f} s, wrong {self.report.wrong}")
        return self.report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = streams.Parser(prog="python -m tests.cuda.decode.soak", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=100_000, help="launches (default 100000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="stop after so many, whatever is left")
    parser.add_argument("--only", type=int, metavar="INDEX", help="repeat one launch: alone, then within its block")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        return streams.refuse("soak", "no NVIDIA card: the kernels run on Hopper (sm_90)", given.json)
    soak = Soak(given.seed)
    say(f"{len(soak.layers)} layers ready after {soak.report.prepared_seconds:.1f} s")
    report = soak.report
    try:
        if given.only is None:
            soak.run(given.runs, given.seconds)
        else:
            number, place = divmod(given.only, soak.per_block)
            soak.block(number, soak.per_block, place)
    except RuntimeError as error:  # a trap or a bad address: the card answers nothing after it
        first = soak.number * soak.per_block
        report.wrong += 1
        report.mismatches.append(
            {"seed": given.seed, "from": first, "to": first + soak.per_block, "failed": str(error)}
        )
        say(f"failed among runs {first} to {first + soak.per_block}, seed {given.seed}: {error}")
    lost = 0
    if given.json:
        lost = streams.emit("soak", json.dumps({**report.__dict__, "good": report.good}))
    worst = max((value if value is not None else float("inf")) for value in report.worst_error.values())
    say(
        f"{report.runs} runs in {report.seconds:.1f} s: {report.wrong} wrong, "
        f"{report.canaries_touched} canaries touched, worst error {worst:.2g}"
    )
    return lost or (0 if report.good else 1)


if __name__ == "__main__":
    sys.exit(main())
