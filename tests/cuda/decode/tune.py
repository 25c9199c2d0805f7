"""Sizes and constants of the decode kernels, varied, checked and timed on a card beside what the product builds.

    python -m tests.cuda.decode.tune --scheme u4 --tokens 1,4 --vary DEPTH=2,3 --vary STAGE_EXPERTS=2,4

Every combination is built; its results are held against those of the product's build, and twice against themselves;
the settings then take turns at the card, `--rounds` times, in CUDA graphs on cold weights. Names: knobs.py. A setting
that cannot be built, or is wrong, says so in its row. Exit 1: one is wrong; 2: bad arguments, no Hopper card, no
compiler.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from statistics import median

import torch

from tests.cuda.decode import knobs, stamps
from xpu_moe import bounds, streams
from xpu_moe.bench import timing
from xpu_moe.bench.suites import moe
from xpu_moe.cuda import compiler, jit
from xpu_moe.cuda.compiler import CompileError, Program
from xpu_moe.cuda.decode import launch
from xpu_moe.cuda.decode.plan import MAX_TOKENS, NoPlan, bucket

MOST = 128  # settings
BOUND = 2e-2  # relative difference from the product's build: both round to bf16
SAMPLES = 10  # graph replays of a setting in a round


@dataclass
class Row:
    """A setting: us a call for each number of tokens (medians of the rounds, and the least of them), or why not."""

    setting: dict[str, int]
    us: dict[int, float] = field(default_factory=dict)
    least: dict[int, float] = field(default_factory=dict)
    said: str = ""
    wrong: bool = False


class Built:
    """A setting's variants and calls, for one number of tokens."""

    def __init__(self, family: moe.Family, asked: argparse.Namespace, setting: knobs.Setting, tokens: int) -> None:
        self.bits, self.setting = stamps.SCHEMES[asked.scheme][0], setting
        blocks = torch.cuda.get_device_properties(0).multi_processor_count
        with knobs.applied(setting, self.bits):
            chosen = knobs.planned(stamps.shape_of(asked), bucket(tokens), blocks)
            kernel = load(program_of(chosen, setting), family.layers[0][0].device.index)
            state = torch.zeros(chosen.state_bytes, dtype=torch.uint8, device=family.setting.kind)
            made = stamps.calls_of(family, chosen, kernel, [state] * asked.calls, tokens)
        self.calls, self.outs = [call for call, _ in made], [out for _, out in made]

    def results(self) -> torch.Tensor:
        """float32 [calls, M, H]."""
        with knobs.applied(self.setting, self.bits):
            for call, out in zip(self.calls, self.outs):
                out.fill_(float("nan"))
                call()
        return torch.stack(self.outs).float()

    def us(self) -> float:
        with knobs.applied(self.setting, self.bits):
            return timing.graph(self.calls, rounds=SAMPLES).us


def program_of(chosen, setting: knobs.Setting) -> Program:
    return knobs.edited(launch.unit(chosen), setting)


def load(unit: Program, device: int | None) -> jit.Kernel:
    return jit.load(unit, "moe_decode", launch._SIGNATURE, device)


def settings_of(asked: argparse.Namespace) -> list[dict[str, int]]:
    """The product's own ({}), then every combination of what varies."""
    varied = [[(name, value) for value in values] for name, values in asked.vary]
    return [{}, *(dict(chosen) for chosen in itertools.product(*varied) if chosen)]


def compile_all(asked: argparse.Namespace, settings: Sequence[dict[str, int]]) -> None:
    """Machine code of every variant, side by side, into the cache; what fails says so when it is loaded."""
    shape, blocks = stamps.shape_of(asked), torch.cuda.get_device_properties(0).multi_processor_count
    bits, units = stamps.SCHEMES[asked.scheme][0], []
    for setting, size in itertools.product(settings, {bucket(tokens) for tokens in asked.tokens}):
        with knobs.applied(setting, bits):
            try:
                units.append(program_of(knobs.planned(shape, size, blocks), setting))
            except NoPlan:
                continue

    def one(unit: Program) -> None:
        try:
            compiler.cubin(unit, jit.architecture(0))
        except CompileError:
            return

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, units))


def tune(asked: argparse.Namespace, kind: str = "cuda") -> list[Row]:
    """A row for each setting, the product's first. Raises NoPlan where the product has no variant, and NoCompiler."""
    rows = [Row(setting) for setting in settings_of(asked)]
    compile_all(asked, [row.setting for row in rows])
    family = stamps.family_of(asked, kind)
    for tokens in asked.tokens:
        wanted, built = None, {}
        for i, row in enumerate(rows):
            if row.said:
                continue
            try:
                built[i] = Built(family, asked, row.setting, tokens)
            except (NoPlan, CompileError, jit.DriverError, ValueError) as error:
                if not row.setting:
                    raise
                row.said = f"M {tokens}: {str(error).splitlines()[0]}"
                continue
            wanted = judge(row, tokens, built[i], wanted)
            if row.wrong:
                del built[i]
        rounds: dict[int, list[float]] = {i: [] for i in built}
        for _ in range(asked.rounds):
            for i, each in built.items():
                rounds[i].append(each.us())
        for i, found in rounds.items():
            rows[i].us[tokens], rows[i].least[tokens] = round(median(found), 3), round(min(found), 3)
            streams.warn(f"tune: M {tokens} {said(rows[i].setting)}: {rows[i].us[tokens]:.2f} us")
    return rows


def judge(row: Row, tokens: int, built: Built, wanted: torch.Tensor | None) -> torch.Tensor:
    """Hold a build against itself and the product's results, which come back."""
    first, again = built.results(), built.results()
    if not torch.equal(first, again):
        row.wrong, row.said = True, f"M {tokens}: equal inputs gave different bits"
    if wanted is None:
        return first
    difference = float((first - wanted).norm() / wanted.norm())
    if not difference < BOUND:
        row.wrong, row.said = True, f"M {tokens}: off by {difference:.1e}"
    return wanted


# ---- the answer
def said(setting: knobs.Setting) -> str:
    return " ".join(f"{name}={value}" for name, value in setting.items()) or "as the product is"


def table(rows: Sequence[Row], asked: argparse.Namespace) -> str:
    """What a person reads: us a call, and the ratio to the product's build in the same run."""
    width = max(len(said(row.setting)) for row in rows) + 2
    lines = [f"{asked.scheme}, H {asked.hidden}, I {asked.inter}: us a call, least of the rounds, x the product's", ""]
    lines.append(f"{'setting':<{width}}" + "".join(f"{f'M {tokens}':>22}" for tokens in asked.tokens))
    for row in rows:
        cells = [
            f"{row.us[m]:8.2f} {row.least[m]:7.2f} {row.us[m] / rows[0].us[m]:5.3f}" if m in row.us else "-"
            for m in asked.tokens
        ]
        lines.append(f"{said(row.setting):<{width}}" + "".join(f"{cell:>22}" for cell in cells) + f"  {row.said}")
    return "\n".join(line.rstrip() for line in lines)


def _varied(text: str) -> tuple[str, list[int]]:
    name, _, values = text.partition("=")
    if name not in knobs.NAMES or not all(value.isdecimal() for value in values.split(",")):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted NAME=N,N,... with a name of {', '.join(knobs.NAMES)}")
    return name, [int(value) for value in values.split(",")]


def _parser() -> streams.Parser:
    parser = streams.Parser(prog="python -m tests.cuda.decode.tune", description=(__doc__ or "").split("\n")[0])
    stamps.add_sizes(parser)
    parser.add_argument("--tokens", default="1,4", metavar="M,M", help=f"1 to {MAX_TOKENS} (default 1,4)")
    parser.add_argument("--vary", type=_varied, action="append", default=[], metavar="NAME=N,N", help="may be repeated")
    parser.add_argument("--calls", type=int, default=24, help="launches in the graph (default 24)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each setting (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def check(asked: argparse.Namespace) -> None:
    """ValueError names the argument that is out of bounds."""
    asked.tokens = bounds.listed("--tokens", asked.tokens, MAX_TOKENS)
    stamps.check_sizes(asked)
    bounds.whole("--calls", asked.calls, 1, 256)
    bounds.whole("--rounds", asked.rounds, 1, 100)
    bounds.whole("--vary: settings", len(settings_of(asked)), 1, MOST)


def main(arguments: Sequence[str] | None = None, run: Callable[[argparse.Namespace], list[Row]] = tune) -> int:
    asked = _parser().parse_args(arguments)
    try:
        check(asked)
    except ValueError as error:
        return streams.refuse("tune", str(error), asked.json)
    if reason := stamps.no_card():
        return streams.refuse("tune", reason, asked.json)
    try:
        rows = run(asked)
    except (NoPlan, jit.NoCompiler) as error:
        return streams.refuse("tune", str(error), asked.json)
    wrong = any(row.wrong for row in rows)
    data = {"ok": not wrong, "scheme": asked.scheme, "rows": [asdict(row) for row in rows]}
    lost = streams.emit("tune", json.dumps(data) if asked.json else table(rows, asked))
    return lost or int(wrong)


if __name__ == "__main__":
    sys.exit(main())
