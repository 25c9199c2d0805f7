"""Routing and activation quantisation: one call against its two halves as launches of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from xpu_moe.bench import timing
from xpu_moe.bench.report import Row
from xpu_moe.bench.suite import Setting
from xpu_moe.cpu.route_and_quant_fp8 import quantize
from xpu_moe.cpu.route_sigmoid_topk import route
from xpu_moe.ops.route_and_quant_fp8 import Options, Plan, Routed, empty, route_and_quant_fp8, selection
from xpu_moe.serving.rivals import route_quant_pair

HELP = "route_and_quant_fp8: sigmoid top-k and e4m3 group quantisation in one launch"

HIDDEN, EXPERTS, TOP_K = 3072, 256, 8  # MiniMax-M2
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_SMALL = (1, 16, 64)
# Input sets of a timing, each with random values of its own. The kernel before has just written x and the logits, so
# they are in the cache as far as they fit: few sets for many tokens.
_SETS = ((512, 4), (1 << 62, 2))


@dataclass(frozen=True)
class Inputs:
    x: torch.Tensor
    logits: torch.Tensor
    bias: torch.Tensor
    out: Routed


def inputs(kind: str, tokens: int, options: Options, seed: int) -> Inputs:
    """Random arguments and outputs of one call."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, HIDDEN, generator=draw).to(torch.bfloat16).to(kind)
    logits = torch.randn(tokens, EXPERTS, generator=draw).to(kind)
    bias = (torch.randn(EXPERTS, generator=draw) * 0.1).to(kind)
    return Inputs(x, logits, bias, empty(x, options))


def errors(found: Routed, given: Inputs, options: Options) -> dict[str, float]:
    """Deviations from torch on the same device: ids and codes that differ, largest weight and scale error."""
    weights, ids = route(given.logits, given.bias, options.top_k, options.renormalize, options.scale)
    codes, scales = quantize(given.x, options.group_size, options.scale_ue8m0, options.padded_hidden_size)
    return {
        "ids": float((found.topk_ids != ids).sum()),
        "weights": float((found.topk_weights - weights).abs().max()),
        "codes": float((found.x_q.view(torch.uint8) != codes.view(torch.uint8)).sum()),
        "scales": float((found.x_scale - scales).abs().max()),
    }


def set_count(tokens: int) -> int:
    """Input sets that a timing of M tokens goes round."""
    return next(sets for limit, sets in _SETS if tokens <= limit)


def moved(tokens: int) -> float:
    """Bytes: x and logits read once; codes, scales, weights and ids written once."""
    return tokens * (HIDDEN * 2 + EXPERTS * 4 + HIDDEN + HIDDEN // 128 * 4 + TOP_K * 8) + EXPERTS * 4.0


def rows(setting: Setting) -> Iterator[Row]:
    """One row for each M and scale format. `extra`: eager calls, planned and allocating; of a torch operator."""
    for tokens in setting.sizes(_TOKENS, _SMALL):
        for ue8m0 in (False, True) if tokens in (16, 1024) else (False,):
            yield _row(setting, tokens, Options(TOP_K, scale_ue8m0=ue8m0))


def _row(setting: Setting, tokens: int, options: Options) -> Row:
    sets = [inputs(setting.kind, tokens, options, setting.seed + 1000 * tokens + i) for i in range(set_count(tokens))]
    chosen = selection(sets[0].x, sets[0].logits, options)

    def calls(function: Callable) -> list[timing.Call]:
        return [partial(function, s) for s in sets]

    def call(s: Inputs) -> object:
        return route_and_quant_fp8(s.x, s.logits, s.bias, TOP_K, scale_ue8m0=options.scale_ue8m0, out=s.out)

    def allocating(s: Inputs) -> object:
        return route_and_quant_fp8(s.x, s.logits, s.bias, TOP_K, scale_ue8m0=options.scale_ue8m0)

    for given in sets:
        for tensor in given.out:
            tensor.view(torch.uint8).fill_(0x55)  # an element that nobody writes shows
        call(given)
    worst = [errors(given.out, given, options) for given in sets]
    found = timing.measure(setting.kind, calls(call), rounds=setting.rounds)
    plan = Plan(sets[0].x, sets[0].logits, sets[0].bias, TOP_K, scale_ue8m0=options.scale_ue8m0)
    eager = timing.eager(setting.kind, calls(lambda s: plan(s.x, s.logits, s.bias)), rounds=setting.rounds)
    whole = timing.eager(setting.kind, calls(allocating), rounds=setting.rounds)
    # What the host takes for any launch: eager calls of one small operator of torch's, with its output given.
    small = torch.zeros(8, device=setting.kind)
    of_torch = timing.eager(setting.kind, [partial(torch.neg, small, out=small)] * len(sets), rounds=setting.rounds)
    return Row(
        suite="route_quant",
        name="route_quant" + (" ue8m0" if options.scale_ue8m0 else ""),
        shape=f"M {tokens} H {HIDDEN} E {EXPERTS}",
        timing=found,
        moved=moved(tokens),
        floor_us=setting.ceiling.floor_us(moved(tokens)),
        rivals=_rivals(setting, sets, options),
        errors={name: max(found[name] for found in worst) for name in worst[0]},
        backend=chosen.name,
        reason=chosen.reason,
        extra={
            "eager_us": eager.us,
            "eager_allocating_us": whole.us,
            "eager_torch_neg_us": of_torch.us,
            "tokens": tokens,
        },
    )


def _rivals(setting: Setting, sets: list[Inputs], options: Options) -> dict[str, float | str]:
    pair = timing.measure(setting.kind, pair_calls(setting.kind, sets, options), rounds=setting.rounds)
    return {"two launches": pair.us, "vllm": _vllm(setting, sets, options)}


def pair_calls(kind: str, sets: list[Inputs], options: Options) -> list[timing.Call]:
    """The same work as two calls: routing, then quantisation."""
    if kind == "cuda":
        from xpu_moe.cuda.route_quant import launch

        halves = [launch.runner(sets[0].x, sets[0].logits, sets[0].bias, options, parts=p) for p in ("route", "quant")]

        def launches(s: Inputs) -> None:
            for half in halves:
                half(s.x, s.logits, s.bias, s.out)

        return [partial(launches, s) for s in sets]

    def both(s: Inputs) -> None:
        route(s.logits, s.bias, options.top_k, options.renormalize, options.scale)
        quantize(s.x, options.group_size, options.scale_ue8m0)

    return [partial(both, s) for s in sets]


def _vllm(setting: Setting, sets: list[Inputs], options: Options) -> float | str:
    """vLLM's own pair on this device, where it is installed with CUDA kernels."""
    if setting.kind != "cuda":
        return "not run on a CPU"
    run = route_quant_pair(TOP_K, options.group_size, options.scale_ue8m0)
    if isinstance(run, str):
        return run
    calls = [partial(run, s.x, s.logits, s.bias) for s in sets]
    return timing.measure(setting.kind, calls, rounds=setting.rounds).us
