"""Where the clocks of a decode kernel go: the variant that leaves clock stamps (state.cuh, TRACE), in a replayed graph.

    python -m tests.cuda.decode.stamps --scheme u4 --tokens 4

Every launch of the graph has routes, activations and a state of its own, and the launches go round more layers than
the cache holds. A stamp counts from the end of the launch before as its own block saw it (stamp 1), so times before
that are negative. Exit 1: the kernel left no stamps; 2: bad arguments, no Hopper card, or no compiler.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from xpu_moe import bounds, device, streams
from xpu_moe.bench import timing
from xpu_moe.bench.ceilings import Ceiling
from xpu_moe.bench.suite import Setting
from xpu_moe.bench.suites import moe
from xpu_moe.cuda import jit
from xpu_moe.cuda.decode import backends, launch
from xpu_moe.cuda.decode.plan import MAX_TOKENS, NoPlan, Plan, Shape, bucket, plan
from xpu_moe.ops.prepared import PreparedInputs

PLACES = 16  # stamps of a block, int64
STARTED, ORIGIN, STORED, PROCESSOR = 0, 1, 8, 15
PROCESSOR_BASE = 1024  # stamp 15 is this and the multiprocessor's number
NAMES = {
    STARTED: "started",
    2: "routes sorted",
    3: "first unit in shared memory",
    4: "W13 done",
    5: "first stage of W2 in shared memory",
    6: "h of the first stage of W2 seen",
    7: "W2 done",
    STORED: "out stored",
    9: "producer has asked for the first unit",
    10: "producer has asked for everything",
    11: "second unit in shared memory",
    12: "last unit in shared memory",
    13: "h of the last stage of W2 seen",
    14: "finisher has stored h of the last unit",
}
SCHEMES: dict[str, tuple[int, str, type[moe.Family]]] = {  # bits, type of the scales, layers and inputs
    "u4": (4, "float16", moe.U4),
    "fp8": (8, "float32", moe.Fp8),
}
FIRST = 2  # launches at the graph's start that are not counted: no launch of their own kind runs before them
BURST = 30  # replays in a row, of which the last one's stamps are read


@dataclass(frozen=True)
class Row:
    """A stamp in clocks after stamp 1 of the same block.

    `mean` over all blocks that write it; `earliest` and `latest` block of a launch, each the median over launches.
    """

    stamp: int
    name: str
    mean: float
    earliest: float
    latest: float


@dataclass(frozen=True)
class Report:
    """What was traced and what it showed. `gap`: clocks, None where no two blocks shared a multiprocessor."""

    scheme: str
    tokens: int
    hidden_size: int
    intermediate_size: int
    num_experts: int
    top_k: int
    max_tokens: int
    blocks: int
    calls: int
    replays: int
    took: timing.Timing
    rows: tuple[Row, ...]
    gap: float | None


# ---- arithmetic
def summarise(stamps: torch.Tensor) -> tuple[Row, ...]:
    """Rows in order of their means, from int64 [replays, calls, blocks, 16]; 0 is a stamp that was not written.

    A stamp that no block writes has no row.
    """
    origin, rows = stamps[..., ORIGIN], []
    for number, name in NAMES.items():
        written = (stamps[..., number] != 0) & (origin != 0)
        launches = written.any(-1)
        if not launches.any():
            continue
        after = (stamps[..., number] - origin).double()
        earliest = after.masked_fill(~written, math.inf).amin(-1)[launches].median()
        latest = after.masked_fill(~written, -math.inf).amax(-1)[launches].median()
        rows.append(Row(number, name, after[written].mean().item(), earliest.item(), latest.item()))
    return tuple(sorted(rows, key=lambda row: row.mean))


def gap(stamps: torch.Tensor) -> float | None:
    """Median clocks from "out stored" of a block to "started" of the next launch's block on the same multiprocessor.

    From int64 [replays, calls, blocks, 16], one block a multiprocessor; None where no block has such a successor.
    """
    processor = stamps[..., PROCESSOR] - PROCESSOR_BASE
    nowhere = max(0, int(processor.max()) + 1)  # a place for blocks whose multiprocessor is not known
    processor = torch.where(processor >= 0, processor, nowhere)
    before, after = processor[:, :-1], processor[:, 1:]
    stored = torch.zeros(*before.shape[:2], nowhere + 1, dtype=torch.int64)
    stored.scatter_(-1, before, stamps[:, :-1, :, STORED])
    stored[..., nowhere] = 0
    earlier, started = stored.gather(-1, after), stamps[:, 1:, :, STARTED]
    both = (earlier != 0) & (started != 0)
    return (started - earlier)[both].double().median().item() if both.any() else None


# ---- launches
def shape_of(asked: argparse.Namespace) -> Shape:
    """The compiled shape of a scheme and sizes: bf16, gated silu."""
    bits, scale, _ = SCHEMES[asked.scheme]
    return Shape(
        bits, asked.hidden, asked.inter, asked.experts, asked.top_k, moe.GROUP, activation="silu", gated=True,
        dtype="bfloat16", scale=scale, route_weight="float32", wide_ids=False,
    )  # fmt: skip


def family_of(asked: argparse.Namespace, kind: str) -> moe.Family:
    """Layers that outrun the cache."""
    setting = Setting(kind, Ceiling(0.0, "no floor is asked for"))
    return SCHEMES[asked.scheme][2](setting, moe.Shape(asked.hidden, asked.inter, asked.experts, asked.top_k))


def traced(family: moe.Family, chosen: Plan, tokens: int, count: int) -> tuple[list[Callable], list[torch.Tensor]]:
    """`count` calls of the variant with stamps, and the state of each."""
    room = chosen.state_bytes + chosen.blocks * PLACES * 8
    states = [torch.zeros(room, dtype=torch.uint8, device=family.setting.kind) for _ in range(count)]
    index = family.layers[0][0].device.index
    kernel = jit.load(launch.unit(chosen, trace=True), "moe_decode", launch._SIGNATURE, index)
    calls = calls_of(family, chosen, kernel, states, tokens)
    return [call for call, _ in calls], states


def calls_of(
    family: moe.Family, chosen: Plan, kernel: jit.Kernel, states: Sequence[torch.Tensor], tokens: int
) -> list[tuple[Callable, torch.Tensor]]:
    """A call for each state, on routes and activations of its own, and where its result goes."""
    shape, kind = family.shape, family.setting.kind
    draw = torch.Generator(device=kind).manual_seed(tokens)
    calls = []
    for index, state in enumerate(states):
        routes = moe.routes(shape, tokens, kind, 1000 * tokens + index)
        x = torch.randn(tokens, shape.hidden, device=kind, generator=draw).to(torch.bfloat16)
        inputs = family.inputs(x, routes)
        pair = (inputs.x_q, inputs.x_scale) if isinstance(inputs, PreparedInputs) else (x, None)
        bound = launch.Bound(chosen.shape, family.layers[index % len(family.layers)])
        bound._kernels[bucket(tokens)] = (chosen, kernel, state)  # in place of the product's variant and state
        out = torch.empty_like(x)
        calls.append((_call(bound, (*pair, routes.weights, routes.ids, out)), out))
    return calls


def _call(bound: launch.Bound, arguments: tuple) -> Callable:
    return lambda: bound(*arguments)


def read(states: Sequence[torch.Tensor], chosen: Plan) -> torch.Tensor:
    """The stamps of each call, int64 [calls, blocks, 16], on the host."""
    behind = torch.stack([state[chosen.state_bytes :] for state in states])
    return behind.view(torch.int64).view(len(states), chosen.blocks, PLACES).cpu()


def replayed(calls: Sequence[Callable], look: Callable[[], torch.Tensor], count: int) -> tuple[timing.Timing, list]:
    """Replay a graph of the calls: the time of a call, and what `look` gives after each of `count` bursts."""
    samples, found = [], []
    for us in timing.replays(calls, count, burst=BURST):
        samples.append(us)
        found.append(look())
    return timing.Timing.of(samples, BURST * len(calls), "cuda graph"), found


def trace(asked: argparse.Namespace, kind: str = "cuda") -> Report:
    """Everything that `main` was asked for. `kind` "cpu" is for tests. Raises NoPlan, NoCompiler."""
    chosen = plan(shape_of(asked), bucket(asked.tokens), torch.cuda.get_device_properties(0).multi_processor_count)
    family = family_of(asked, kind)
    calls, states = traced(family, chosen, asked.tokens, asked.calls)
    found, stamps = replayed(calls, lambda: read(states, chosen), asked.replays)
    counted = torch.stack(stamps)[:, FIRST:]
    return Report(
        asked.scheme, asked.tokens, asked.hidden, asked.inter, asked.experts, asked.top_k, chosen.max_tokens,
        chosen.blocks, asked.calls, asked.replays, found, summarise(counted), gap(counted),
    )  # fmt: skip


# ---- the answer
def table(report: Report) -> str:
    """What a person reads."""
    us = report.took
    lines = [
        f"{report.scheme}, M {report.tokens} (variant for {report.max_tokens}), H {report.hidden_size}, "
        f"I {report.intermediate_size}, E {report.num_experts}, top_k {report.top_k}, {report.blocks} blocks: "
        f"{us.us:.2f} us a call ({us.low:.2f} to {us.high:.2f}), stamps included: they cost time",
        "clocks after the launch before is over; earliest and latest block of a launch: medians over "
        f"{report.calls - FIRST} launches of {report.replays} replays",
        "",
        f"{'stamp':<42}{'mean':>9}{'earliest':>10}{'latest':>9}",
    ]
    lines += [
        f"{row.stamp:>2} {row.name:<39}{row.mean:>9,.0f}{row.earliest:>10,.0f}{row.latest:>9,.0f}"
        for row in report.rows
    ]
    if report.gap is not None:
        lines += [
            "",
            f"next launch begins on this multiprocessor: {report.gap:,.0f} clocks after out is stored (median)",
        ]
    return "\n".join(lines)


def _parser() -> streams.Parser:
    parser = streams.Parser(prog="python -m tests.cuda.decode.stamps", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=1, metavar="M", help=f"1 to {MAX_TOKENS} (default 1)")
    add_sizes(parser)
    parser.add_argument("--calls", type=int, default=24, help="launches in the graph (default 24)")
    parser.add_argument("--replays", type=int, default=8, help=f"replays read, each the last of {BURST} (default 8)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def add_sizes(parser: streams.Parser) -> None:
    """The layer's arguments: `check_sizes` bounds them."""
    parser.add_argument("--scheme", choices=tuple(SCHEMES), default="u4")
    parser.add_argument("--inter", type=int, default=384, metavar="I", help="intermediate size (default 384)")
    parser.add_argument("--hidden", type=int, default=3072, metavar="H", help="hidden size (default 3072)")
    parser.add_argument("--experts", type=int, default=256, metavar="E", help="(default 256)")
    parser.add_argument("--top-k", type=int, default=8, metavar="K", help="experts of a token (default 8)")


def check(asked: argparse.Namespace) -> None:
    """ValueError names the argument that is out of bounds; sizes that no kernel is built for are NoPlan's to name."""
    bounds.whole("--tokens", asked.tokens, 1, MAX_TOKENS)
    check_sizes(asked)
    bounds.whole("--calls", asked.calls, FIRST + 2, 256)
    bounds.whole("--replays", asked.replays, 1, 100)


def check_sizes(asked: argparse.Namespace) -> None:
    """As `check`."""
    bounds.whole("--inter", asked.inter, 1, 1 << 16)
    bounds.whole("--hidden", asked.hidden, 1, 1 << 16)
    bounds.whole("--experts", asked.experts, 1, 1 << 10)
    bounds.whole("--top-k", asked.top_k, 1, min(32, asked.experts))


def no_card() -> str:
    """Why nothing can run here, or ""."""
    if not torch.cuda.is_available():
        return "no NVIDIA card: the kernels run on Hopper (sm_90)"
    found = device.architecture("cuda")
    return "" if found in backends.ARCHITECTURES else f"the card is {found}: the kernels run on Hopper (sm_90)"


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    try:
        check(asked)
    except ValueError as error:
        return streams.refuse("stamps", str(error), asked.json)
    if reason := no_card():
        return streams.refuse("stamps", reason, asked.json)
    try:
        report = trace(asked)
    except (NoPlan, jit.NoCompiler) as error:
        return streams.refuse("stamps", str(error), asked.json)
    if not report.rows:
        return streams.refuse("stamps", "the kernel left no stamps", asked.json, code=1)
    return streams.emit("stamps", json.dumps({"ok": True, **asdict(report)}) if asked.json else table(report))


if __name__ == "__main__":
    sys.exit(main())
