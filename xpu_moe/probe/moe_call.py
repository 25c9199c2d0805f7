"""The call that `probe moe` makes: a layer's tensors on a device, the check against float64, the timing."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from xpu_moe import bounds, device, host_memory
from xpu_moe.bench import ceilings, timing
from xpu_moe.cpu.moe_u4 import reference as moe_reference
from xpu_moe.cpu.moe_u4_routed import reference as routed_reference
from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.ops.activation import is_gated, w13_rows
from xpu_moe.ops.contract import Case, NoBackend, Selection, backends, select
from xpu_moe.ops.moe_u4 import GROUP_SIZES
from xpu_moe.ops.moe_u4 import case_of as moe_case
from xpu_moe.ops.moe_u4_routed import case_of as routed_case
from xpu_moe.probe.moe_shape import TOLERANCE, Shape

# Sets of routes that the timing goes through, and its rounds: a CPU takes its time.
ROUTINGS = {"cpu": 4, "xpu": 16, "cuda": 16}
ROUNDS = {"cpu": 3, "xpu": 20, "cuda": 20}
POISON = 0xCD
# Beyond these no product of sizes is a number of bytes that an allocator can be asked for.
_MOST = {"tokens": bounds.TOKENS, "hidden_size": 1 << 20, "intermediate_size": 1 << 24, "num_experts": 1 << 16}


class CannotProbe(RuntimeError):
    """The flags describe no call that can be made here; the message says what to change."""


def check_shape(shape: Shape) -> None:
    """Raise CannotProbe for flags that fit no layer."""
    for name, most in _MOST.items():
        if getattr(shape, name) > most:
            raise CannotProbe(f"--{name.replace('_', '-')}: got {getattr(shape, name)}, wanted at most {most}")
    if shape.tp < 1 or shape.intermediate_size % shape.tp:
        raise CannotProbe(f"--tp: got {shape.tp}, wanted a divisor of --intermediate-size {shape.intermediate_size}")
    if shape.group_size not in GROUP_SIZES:
        raise CannotProbe(f"--group-size: got {shape.group_size}, wanted {' or '.join(map(str, GROUP_SIZES))}")
    for flag, value in (("--hidden-size", shape.hidden_size), ("--intermediate-size / --tp", shape.inter)):
        if value <= 0 or value % shape.group_size:
            raise CannotProbe(f"{flag}: got {value}, wanted a multiple of --group-size {shape.group_size}")
    if shape.num_experts < 1:
        raise CannotProbe(f"--num-experts: got {shape.num_experts}, wanted at least 1")
    if not 1 <= shape.top_k <= shape.num_experts:
        raise CannotProbe(f"--top-k: got {shape.top_k}, wanted 1..{shape.num_experts} (--num-experts)")
    if shape.tokens < 1:
        raise CannotProbe(f"--tokens: got {shape.tokens}, wanted at least 1")


def check_memory(shape: Shape, kind: str, free: int | None = None) -> None:
    """Raise CannotProbe where a CPU's free memory does not hold the layer: Linux would end the process without a word.

    Counted: nibbles and scales (drawn in float32, the largest at a time), x and float64 copies of it, the routes.
    """
    if kind != "cpu":
        return  # an accelerator's allocator refuses in words
    free = host_memory.free_memory() if free is None else free
    rows = w13_rows(shape.activation, shape.inter)
    values = shape.num_experts * shape.hidden_size * (rows + shape.inter)
    routes = ROUTINGS[kind] * shape.tokens * (shape.num_experts + 2 * shape.top_k) * 4
    needed = values // 2 + 6 * values // shape.group_size + 20 * shape.tokens * shape.hidden_size + routes
    if free and needed > free:
        raise CannotProbe(
            f"--tokens, --hidden-size, --intermediate-size / --tp, --num-experts: got M {shape.tokens}, H "
            f"{shape.hidden_size}, I {shape.inter}, E {shape.num_experts}, which need {needed / 1e9:.1f} GB; wanted a "
            f"shape for the {free / 1e9:.1f} GB that are free"
        )


def device_kind(asked: str | None) -> str:
    """The device kind to probe; CannotProbe where the one asked for is not here."""
    kind = asked or device.current().kind
    if not device.devices(kind):
        unseen = "; ".join(device.inventory().unseen) or "none was found"
        raise CannotProbe(f"--device {kind}: {unseen}")
    return kind


@dataclass(frozen=True)
class Call:
    """The tensors of a call, on the device; `routes` has some sets of (weights, ids), or of (logits, bias)."""

    shape: Shape
    kind: str
    x: torch.Tensor
    weights: dict[str, torch.Tensor]
    routes: list[tuple[torch.Tensor, torch.Tensor]]

    def verdict(self, got: torch.Tensor) -> dict[str, Any]:
        """How `got` compares with the truth: {"ok", "error", "tolerance"}."""
        return verdict(got, self.truth(), self.shape.dtype)

    @property
    def settings(self) -> dict[str, Any]:
        shape = self.shape
        return {"nibble": shape.nibble, "group_size": shape.group_size, "activation": shape.activation}

    def case(self) -> Case:
        """The call's case on canonical weights."""
        shape, weights = self.shape, self.weights
        if shape.routed:
            return routed_case(self.x, weights["w13"], weights["w2"], self.routes[0][0], shape.top_k, **self.settings)
        return moe_case(self.x, weights["w13"], weights["w2"], *self.routes[0], **self.settings)

    def select(self, name: str | None) -> Selection:
        """Who serves the call in one of the layouts that the backends declare, in their order. Raises NoBackend."""
        case, refused = self.case(), []
        for layout, nibble in _layouts(case):
            try:
                taken = select(replace(case, layout=layout, nibble=nibble), name)
            except NoBackend as error:
                refused += [(who, why) for who, why in error.refused if (who, why) not in refused]
                continue
            before = tuple(pair for pair in (*refused, *taken.refused) if pair[0] != taken.name)
            return replace(taken, refused=tuple(dict.fromkeys(before)))
        raise NoBackend(case, refused, name)

    def prepare(self, selection: Selection) -> Int4MoeWeights:
        """The weights in the order that the backend reads; may be in place, the canonical ones are then void."""
        tensors = self.weights
        canonical = Int4MoeWeights(
            tensors["w13"], tensors["w13_scale"], tensors["w2"], tensors["w2_scale"], self.shape.nibble,
            self.shape.group_size, gated=is_gated(self.shape.activation),
        )  # fmt: skip
        return selection.backend.prepare(canonical, selection.case)

    def run(
        self, selection: Selection, weights: Int4MoeWeights, routing: int, out: torch.Tensor, workspace: torch.Tensor
    ) -> None:
        """One call of the backend's own entry, as a serving layer makes it."""
        tensors = (self.x, weights.w13, weights.w13_scale, weights.w2, weights.w2_scale, *self.routes[routing])
        extra: dict[str, Any] = {"renormalize": True, "scale": 1.0} if self.shape.routed else {}
        routed = (self.shape.top_k,) if self.shape.routed else ()
        selection.backend.run(
            *tensors, *routed, nibble=weights.nibble, group_size=weights.group_size, activation=self.shape.activation,
            layout=weights.layout, **extra, out=out, workspace=workspace,
        )  # fmt: skip

    def truth(self, routing: int = 0) -> torch.Tensor:
        """float64 [M, H] on the CPU."""
        x, w13, w13_scale, w2, w2_scale = (tensor.cpu() for tensor in (self.x, *self.weights.values()))
        first, second = (tensor.cpu() for tensor in self.routes[routing])
        if not self.shape.routed:
            return moe_reference(x, w13, w13_scale, w2, w2_scale, first, second, **self.settings)
        top_k = self.shape.top_k
        return routed_reference(x, w13, w13_scale, w2, w2_scale, first, second, top_k, **self.settings)

    def floor_bytes(self, routing: int) -> int:
        """What a call must move: the distinct experts' weights and scales, x and the output once."""
        experts = int(self._ids(routing).unique().numel())
        expert = sum(t[0].numel() * t.element_size() for t in self.weights.values())
        return experts * expert + 2 * self.x.numel() * self.x.element_size()

    def _ids(self, routing: int) -> torch.Tensor:
        first, second = self.routes[routing]
        return second if not self.shape.routed else (torch.sigmoid(first) + second).topk(self.shape.top_k).indices


def _layouts(case: Case) -> list[tuple[str, str]]:
    """(layout, nibble) to try: as declared by the backends; another order of bytes may want its own nibble, too."""
    tried = []
    for backend in backends(case.device, case.op):
        layout = getattr(backend, "layout", "n_major")
        tried += [(layout, case.nibble)] if layout == "n_major" else [(layout, case.nibble), (layout, "u4")]
    return list(dict.fromkeys(tried or [("n_major", case.nibble)]))


def make(shape: Shape, kind: str, seed: int) -> Call:
    """Random tensors of a layer on a device kind. The values are drawn on that device."""
    draw = torch.Generator(device=kind).manual_seed(seed)
    experts, hidden, inter, group = shape.num_experts, shape.hidden_size, shape.inter, shape.group_size
    rows = w13_rows(shape.activation, inter)

    def nibbles(*size: int) -> torch.Tensor:
        return torch.randint(0, 256, size, dtype=torch.uint8, device=kind, generator=draw)

    def scales(*size: int) -> torch.Tensor:
        return (torch.rand(size, device=kind, generator=draw) * 0.01 + 0.001).half()

    weights = {
        "w13": nibbles(experts, rows, hidden // 2),
        "w13_scale": scales(experts, rows, hidden // group),
        "w2": nibbles(experts, hidden, inter // 2),
        "w2_scale": scales(experts, hidden, inter // group),
    }
    x = torch.randn(shape.tokens, hidden, device=kind, generator=draw).to(getattr(torch, shape.dtype))
    return Call(shape, kind, x, weights, [_routing(shape, kind, draw) for _ in range(ROUTINGS[kind])])


def _routing(shape: Shape, kind: str, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(shape.tokens, shape.num_experts, device=kind, generator=draw)
    if shape.routed:
        return logits, torch.randn(shape.num_experts, device=kind, generator=draw) * 0.1
    scores, ids = torch.sigmoid(logits).topk(shape.top_k)
    return (scores / scores.sum(dim=-1, keepdim=True)).contiguous(), ids.to(torch.int32).contiguous()


def relative_error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """||got - truth|| / ||truth|| in float64; infinite where an output was not written or is not finite."""
    got = got.cpu().double()
    if not bool(got.isfinite().all()):
        return float("inf")
    return float((got - truth).norm() / truth.norm())


def verdict(got: torch.Tensor, truth: torch.Tensor, dtype: str) -> dict[str, Any]:
    error = relative_error(got, truth)
    return {"ok": error <= TOLERANCE[dtype], "error": error, "tolerance": TOLERANCE[dtype]}


def measure(call: Call, arguments: argparse.Namespace) -> dict[str, Any]:
    """Check, then time; the report's fields that every device kind has."""
    truth, moved = call.truth(), sum(map(call.floor_bytes, range(len(call.routes)))) / len(call.routes)
    selection = call.select(arguments.backend)
    weights = call.prepare(selection)
    out = torch.full_like(call.x, float("nan"))
    size = max(1, selection.backend.workspace(selection.case))
    workspace = torch.full((size,), POISON, dtype=torch.uint8, device=call.kind)
    call.run(selection, weights, 0, out, workspace)
    timing.synchronize(call.kind)
    checked = verdict(out, truth, call.shape.dtype)

    calls = [lambda r=r: call.run(selection, weights, r, out, workspace) for r in range(len(call.routes))]
    rounds = arguments.rounds or ROUNDS[call.kind]
    timed = timing.measure(call.kind, calls, rounds=rounds, repeats=1 if call.kind == "cpu" else None)
    host_us = _host_us(call.kind, calls)
    ceiling = ceilings.ceiling(call.kind)
    floor = ceiling.floor_us(moved)
    found = device.devices(call.kind)[0]
    return {
        "device": found.name, "kind": call.kind, "architecture": found.architecture, "backend": selection.name,
        "reason": selection.reason, "refused": [list(pair) for pair in selection.refused], **checked,
        "us": timed.us, "us_low": timed.low, "us_high": timed.high, "method": timed.method, "host_us": host_us,
        "bytes": moved, "gbps": moved / timed.us / 1e3, "bandwidth": ceiling.bandwidth,
        "bandwidth_source": ceiling.source, "floor_us": floor,
        "percent_of_bandwidth": 100 * floor / timed.us if floor else None,
        "times_floor": timed.us / floor if floor else None,
    }  # fmt: skip


def _host_us(kind: str, calls: list) -> float:
    """Until the call returns, in us: the host's part on a device that works on its own, everything on a CPU."""
    timing.synchronize(kind)
    start = time.perf_counter()
    for call in calls:
        call()
    took = time.perf_counter() - start
    timing.synchronize(kind)
    return took / len(calls) * 1e6
