"""Mixture of experts: a layer on 4-bit weights and on block-scaled FP8, decode and prefill, cold weights.

Every call has routes of its own, drawn at random, and the calls go round more layers than the cache holds. The floor
counts each distinct expert of the routes once. A rival that always runs is our own Triton chain, asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from xpu_moe import device
from xpu_moe.bench import timing
from xpu_moe.bench.report import Row
from xpu_moe.bench.rivals import Calls, Rival, relative
from xpu_moe.bench.suite import Setting
from xpu_moe.formats.int4 import Int4MoeWeights, empty
from xpu_moe.ops.contract import Backend, Case, NoBackend, in_order, select
from xpu_moe.ops.moe_fp8_block import moe_fp8_block
from xpu_moe.ops.moe_u4 import moe_u4
from xpu_moe.ops.prepared import PreparedInputs
from xpu_moe.serving import moe_rivals

HELP = "moe_u4 and moe_fp8_block: one MoE layer, M 1 to 64 and prefill"

MINIMAX = (3072, 256, 8)  # hidden size, experts, top_k of MiniMax-M2
SMALL = (256, 8, 2)
WIDTHS = (384, 1536)  # I of a rank at TP4 and at TP1
TOKENS = (1, 2, 4, 8, 16, 64, 256, 2048)
GROUP = 128
CALLS = 32  # routes of a timing
Layer = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of a layer and of a call."""

    hidden: int
    inter: int
    experts: int
    top_k: int

    def text(self, tokens: int) -> str:
        return f"M {tokens} I {self.inter} H {self.hidden} E {self.experts}"


@dataclass(frozen=True)
class Routes:
    """Random routes of one call."""

    weights: torch.Tensor
    ids: torch.Tensor


def routes(shape: Shape, tokens: int, kind: str, seed: int) -> Routes:
    """top_k different experts a token, uniformly; weights that add up to 1."""
    draw = torch.Generator(device=kind).manual_seed(seed)
    ids = torch.rand(tokens, shape.experts, device=kind, generator=draw).argsort(1)[:, : shape.top_k]
    weights = torch.rand(tokens, shape.top_k, device=kind, generator=draw)
    return Routes(weights / weights.sum(1, keepdim=True), ids.to(torch.int32).contiguous())


def truth(x: torch.Tensor, expert: Callable[[int], tuple[torch.Tensor, torch.Tensor]], given: Routes) -> torch.Tensor:
    """The float64 result on the same device; `expert(e)` gives (w13, w2) in float64. Gated silu."""
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for e in given.ids.unique().tolist():
        token, slot = (given.ids == e).nonzero(as_tuple=True)
        w13, w2 = expert(e)
        gate, up = (x[token].double() @ w13.T).chunk(2, dim=1)
        hidden = gate * torch.sigmoid(gate) * up
        out.index_add_(0, token, (hidden @ w2.T) * given.weights[token, slot].double().unsqueeze(1))
    return out


def rows(setting: Setting) -> Iterator[Row]:
    """u4 rows, then FP8 rows."""
    hidden, experts, top_k = SMALL if setting.small else MINIMAX
    for inter in (128,) if setting.small else WIDTHS:
        shape = Shape(hidden, inter, experts, top_k)
        for family in (U4(setting, shape), Fp8(setting, shape)):
            for tokens in setting.sizes(TOKENS, (1, 4, 16)):
                yield family.row(tokens)
            del family
            if setting.kind == "cuda":
                torch.cuda.empty_cache()


class Family:
    """What both kinds of weights share: layers that outrun the cache, and the row."""

    name = ""

    def __init__(self, setting: Setting, shape: Shape) -> None:
        self.setting, self.shape = setting, shape
        self.draw = torch.Generator(device=setting.kind).manual_seed(setting.seed)
        one = self.expert_bytes() * shape.top_k
        cache = timing.cache_bytes(setting.kind)
        count = timing.sets_for_cold_cache(one, cache, most=12) if setting.kind != "cpu" else 2
        setting.say(
            f"{self.name}: {count} layers of {self.expert_bytes() * shape.experts / 1e6:.0f} MB, I {shape.inter}"
        )
        self.layers: list[Layer] = []
        self.make(count)

    def expert_bytes(self) -> int:
        raise NotImplementedError

    def make(self, count: int) -> None:
        raise NotImplementedError

    def call(self, index: int, inputs: object, given: Routes, out: torch.Tensor, backend: str | None) -> Callable:
        raise NotImplementedError

    def inputs(self, x: torch.Tensor, given: Routes) -> object:
        return x

    def truth(self, x: object, given: Routes, swapped: bool = False) -> torch.Tensor:
        """The float64 result of layer 0; `swapped`: of the same bytes read as [up; gate]."""
        raise NotImplementedError

    def case(self, tokens: int) -> Case:
        raise NotImplementedError

    def rivals(self, calls: Calls, wanted: torch.Tensor) -> dict[str, Rival]:
        raise NotImplementedError

    def row(self, tokens: int) -> Row:
        """Check one call, then time all of them."""
        shape, setting, kind = self.shape, self.setting, self.setting.kind
        count = CALLS if tokens <= 64 and kind != "cpu" else 4
        given = [routes(shape, tokens, kind, setting.seed + 1000 * tokens + i) for i in range(count)]
        draw = torch.Generator(device=kind).manual_seed(setting.seed + tokens)
        values = [torch.randn(tokens, shape.hidden, device=kind, generator=draw) for _ in range(count)]
        xs = [x.to(torch.bfloat16) for x in values]
        inputs = [self.inputs(x, r) for x, r in zip(xs, given)]
        out = torch.full((tokens, shape.hidden), float("nan"), dtype=torch.bfloat16, device=kind)
        chosen = select(self.case(tokens))
        calls = [self.call(i % len(self.layers), inputs[i], given[i], out, None) for i in range(count)]
        calls[0]()
        wanted = self.truth(inputs[0], given[0])
        error = relative(out, wanted)
        repeats = max(1, 128 // count) if tokens <= 16 and kind != "cpu" else 1
        found = timing.measure(kind, calls, rounds=setting.rounds, repeats=repeats)
        rivals = self.rivals(Calls(setting, xs, inputs, given, out, repeats), wanted) if kind == "cuda" else {}
        distinct = sum(r.ids.unique().numel() for r in given) / count
        moved = distinct * self.expert_bytes() + 2 * tokens * shape.hidden * 2
        return Row(
            suite="moe",
            name=self.name,
            shape=shape.text(tokens),
            timing=found,
            moved=moved,
            floor_us=setting.ceiling.floor_us(moved),
            rivals={name: rival.us for name, rival in rivals.items()},
            errors={"rel": error, **{name: r.error for name, r in rivals.items() if r.error is not None}},
            backend=chosen.name,
            reason=chosen.reason,
            extra={"distinct_experts": distinct, "tokens": tokens, **self.eager(calls, tokens), **self.extra()},
        )

    def eager(self, calls: list, tokens: int) -> dict[str, float]:
        """Host and device time of a call without a graph, for decode sizes."""
        if tokens > 16 or self.setting.kind == "cpu":
            return {}
        return {"eager_us": timing.eager(self.setting.kind, calls, rounds=min(8, self.setting.rounds)).us}

    def extra(self) -> dict[str, float | str]:
        return {}

    def triton(self, given: Calls) -> Rival:
        """Our Triton chain on the same weights."""
        try:
            select(self.case(given.xs[0].shape[0]), "triton_grouped")
        except NoBackend as error:
            return Rival(f"not run: {error.refused[0][1]}" if error.refused else "not run")
        count = min(len(given.xs), 8)
        calls = [
            self.call(i % len(self.layers), given.inputs[i], given.routes[i], given.out, "triton_grouped")
            for i in range(count)
        ]
        setting = given.setting
        return Rival(timing.measure(setting.kind, calls, rounds=min(8, setting.rounds), repeats=2).us)


def _chosen_layout(case: Case) -> tuple[Backend, Case]:
    """The first backend that serves the case in the order of bytes that it makes, and the case so laid."""
    for backend in in_order(case):
        laid = replace(case, layout=getattr(backend, "layout", "n_major"))
        if backend.supports(laid):
            return backend, laid
    raise NoBackend(case, [(b.name, b.supports(case).reason) for b in in_order(case)])


class U4(Family):
    """4-bit weights, fp16 scales for 128 values."""

    name = "moe_u4"
    bound = 1e-2
    marlin: list | str | None = None

    def expert_bytes(self) -> int:
        values = 3 * self.shape.inter * self.shape.hidden
        return values // 2 + values // GROUP * 2

    def make(self, count: int) -> None:
        shape, kind = self.shape, self.setting.kind
        backend, laid = _chosen_layout(self.case(1, "n_major"))
        self.laid, self.before = laid.layout, 0
        for index in range(count):
            weights = empty(shape.experts, shape.hidden, shape.inter, GROUP, device=kind)
            for tensor in (weights.w13, weights.w2):
                tensor.random_(0, 256, generator=self.draw)
            for tensor in (weights.w13_scale, weights.w2_scale):
                tensor.uniform_(0.002, 0.012, generator=self.draw)
            if index == 0:
                self.before = weights.nbytes
                copies = {name: getattr(weights, name).clone() for name in ("w13", "w13_scale", "w2", "w2_scale")}
                self.canonical = replace(weights, **copies)
                weights = backend.prepare(weights, replace(laid, tokens=64))
                self.after = weights.nbytes
                self.setting.say(f"{self.name}: bytes of a layer {self.before} before, {self.after} after `prepare`")
            # Random bytes are random bytes in every order, so the other layers need no conversion.
            self.layers.append((weights.w13, weights.w13_scale, weights.w2, weights.w2_scale))

    def extra(self) -> dict[str, float | str]:
        return {"layer_bytes_before": self.before, "layer_bytes_after": self.after, "layout": self.laid}

    def case(self, tokens: int, layout: str = "") -> Case:
        shape, kind = self.shape, self.setting.kind
        return Case(
            "moe_u4", kind, device.architecture(kind), "bfloat16", tokens, tokens, shape.hidden, shape.inter,
            shape.experts, shape.top_k, GROUP, "u4", "silu", "int4", layout or self.laid,
        )  # fmt: skip

    def call(self, index, inputs, given, out, backend):
        arguments = (inputs, *self.layers[index], given.weights, given.ids)
        settings = {"nibble": "u4", "group_size": GROUP, "activation": "silu", "layout": self.laid, "out": out}
        if backend is None:
            return partial(moe_u4, *arguments, **settings)
        return partial(select(self.case(inputs.shape[0]), backend).backend.run, *arguments, **settings)

    def truth(self, x, given, swapped=False) -> torch.Tensor:
        weights: Int4MoeWeights = self.canonical

        def wide(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).double() - 8
            return codes * scale.double().repeat_interleave(GROUP, 1)

        def expert(e: int) -> tuple[torch.Tensor, torch.Tensor]:
            return wide(weights.w13[e], weights.w13_scale[e]), wide(weights.w2[e], weights.w2_scale[e])

        return truth(x, expert, given)

    def rivals(self, calls, wanted):
        if self.marlin is None:
            weights: Int4MoeWeights = self.canonical
            self.marlin = calls.bound(
                moe_rivals.marlin_int4,
                weights.w13, weights.w13_scale, weights.w2, weights.w2_scale, GROUP, len(self.layers),
            )  # fmt: skip
        return {
            "triton two products": self.triton(calls),
            "vllm marlin": calls.measure(self.marlin, calls.xs, wanted, self.bound),
        }


class Fp8(Family):
    """e4m3 weights with a scale for 128 x 128, on prepared inputs."""

    name = "moe_fp8_block"
    bound = 6e-2  # of a rival: all of them quantise what lies between the two products as well

    def expert_bytes(self) -> int:
        values = 3 * self.shape.inter * self.shape.hidden
        return values + values // (128 * 128) * 4

    def make(self, count: int) -> None:
        shape, kind = self.shape, self.setting.kind

        def codes(*size: int) -> torch.Tensor:
            raw = torch.empty(size, dtype=torch.uint8, device=kind).random_(0, 256, generator=self.draw)
            raw.masked_fill_((raw & 0x7F) == 0x7F, 0x38)  # no NaN
            return raw.view(torch.float8_e4m3fn)

        def scales(*size: int) -> torch.Tensor:
            return torch.empty(size, device=kind).uniform_(1e-5, 2e-4, generator=self.draw)

        e, h, i = shape.experts, shape.hidden, shape.inter
        for _ in range(count):
            self.layers.append(
                (codes(e, 2 * i, h), scales(e, 2 * i // 128, h // 128), codes(e, h, i), scales(e, h // 128, i // 128))
            )

    def case(self, tokens: int) -> Case:
        shape, kind = self.shape, self.setting.kind
        return Case(
            "moe_fp8_block", kind, device.architecture(kind), "bfloat16", tokens, tokens, shape.hidden, shape.inter,
            shape.experts, shape.top_k, 128, "", "silu", "fp8_block", "n_major", True,
        )  # fmt: skip

    def inputs(self, x: torch.Tensor, given: Routes) -> PreparedInputs:
        wide = x.float().unflatten(1, (-1, 128))
        scale = (wide.abs().amax(-1) / 448).clamp(min=1e-10)
        codes = (wide / scale.unsqueeze(-1)).flatten(1).to(torch.float8_e4m3fn)
        return PreparedInputs(given.weights, given.ids, codes, scale, x.shape[1])

    def call(self, index, inputs, given, out, backend):
        if backend is None:
            return partial(moe_fp8_block, inputs, *self.layers[index], activation="silu", out=out)
        return partial(
            select(self.case(inputs.tokens), backend).backend.run, inputs.x_q, inputs.x_scale, *self.layers[index],
            inputs.topk_weights, inputs.topk_ids, activation="silu", layout="n_major", out=out,
        )  # fmt: skip

    def truth(self, x, given, swapped=False) -> torch.Tensor:
        w13, s13, w2, s2 = self.layers[0]

        def wide(weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return weights.float().double() * scale.double().repeat_interleave(128, 0).repeat_interleave(128, 1)

        def expert(e: int) -> tuple[torch.Tensor, torch.Tensor]:
            first = wide(w13[e], s13[e])
            return torch.cat(first.chunk(2)[::-1]) if swapped else first, wide(w2[e], s2[e])

        return truth(x.dequantized(), expert, given)

    def rivals(self, calls, wanted):
        prepared = [(x.x_q, x.x_scale) for x in calls.inputs]
        chain = partial(calls.bound, moe_rivals.triton_fp8_block, self.layers, self.shape.top_k)
        swapped = self.truth(calls.inputs[0], calls.routes[0], swapped=True)
        return {
            "triton two products": self.triton(calls),
            "vllm triton": calls.measure(chain(False), prepared, wanted, self.bound),
            "vllm triton from bf16": calls.measure(chain(True), calls.xs, wanted, self.bound),
            "flashinfer": calls.measure(
                calls.bound(moe_rivals.flashinfer_block, self.layers), calls.xs, swapped, self.bound
            ),
        }
