"""Is one launch ever slower than two? Every power of two and its neighbours, the median ratio of five runs."""

from __future__ import annotations

from collections.abc import Iterator

from xpu_moe.bench import timing
from xpu_moe.bench.report import Row
from xpu_moe.bench.suite import Setting
from xpu_moe.bench.suites.route_quant import EXPERTS, HIDDEN, TOP_K, inputs, moved, pair_calls, set_count
from xpu_moe.ops.route_and_quant_fp8 import Options, route_and_quant_fp8, selection

HELP = "route_and_quant_fp8 against its two halves: median ratio of five runs at powers of two and neighbours"
RUNS = 5
ALLOWED = 1.02
_TOKENS = tuple(sorted({max(1, (1 << power) + off) for power in range(13) for off in (-1, 0, 1)} - {4097}))


def rows(setting: Setting) -> Iterator[Row]:
    """`extra.ratio` is the median of (one launch) / (two launches); `errors.slower` is 1 where it exceeds 1.02."""
    if setting.kind == "cpu":
        setting.say("route_quant_pair: a CPU has no launches to save")
        return
    options = Options(TOP_K)
    for tokens in setting.sizes(_TOKENS, (1, 2)):
        sets = [inputs(setting.kind, tokens, options, setting.seed + i) for i in range(set_count(tokens))]
        one = [lambda s=s: route_and_quant_fp8(s.x, s.logits, s.bias, TOP_K, out=s.out) for s in sets]
        two = pair_calls(setting.kind, sets, options)
        runs = []
        for _ in range(RUNS):
            runs.append([timing.measure(setting.kind, calls, rounds=setting.rounds // 2 or 1) for calls in (one, two)])
        ratios = sorted(ours.us / pair.us for ours, pair in runs)
        ratio = ratios[RUNS // 2]
        middle = sorted(runs, key=lambda run: run[0].us)[RUNS // 2]
        chosen = selection(sets[0].x, sets[0].logits, options)
        yield Row(
            "route_quant_pair", "route_quant / pair", f"M {tokens} H {HIDDEN} E {EXPERTS}", middle[0], moved(tokens),
            setting.ceiling.floor_us(moved(tokens)), {"two launches": middle[1].us},
            {"ratio": round(ratio, 3), "slower": float(ratio > ALLOWED)}, chosen.name, chosen.reason,
            {"ratio": ratio, "tokens": tokens},
        )  # fmt: skip
