"""The ceiling of one decode step: bytes over bandwidth, plus collectives at their latency.

Distinct experts under uniform routing: E (1 - (1 - K/E)^M). All-reduces of a tensor-parallel step: one for the
embedding, and in each layer one after attention, one after the MLP, and one for the Q/K variance where the model norms
the whole head dimension. MiniMax: 1 + 62 x 3 = 187.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xpu_moe.plan.cards import Card
from xpu_moe.plan.shapes import Shapes


@dataclass(frozen=True)
class Item:
    """Bytes of one rank and the milliseconds that reading them takes."""

    name: str
    bytes: int
    ms: float


@dataclass(frozen=True)
class Roofline:
    """One decode step of `tokens` sequences at `context`. `latency_source`: the probe's file or the card's table."""

    tokens: int
    context: int
    world: int
    bandwidth: float
    items: tuple[Item, ...]
    collectives: int
    collective_us: float
    latency_source: str

    @property
    def memory_ms(self) -> float:
        return sum(item.ms for item in self.items)

    @property
    def collective_ms(self) -> float:
        return self.collectives * self.collective_us / 1e3

    @property
    def step_ms(self) -> float:
        return self.memory_ms + self.collective_ms

    @property
    def tok_per_s(self) -> float:
        """Tokens a second of all sequences together: nothing overlapped, no launch cost."""
        return self.tokens * 1e3 / self.step_ms

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "context": self.context,
            "world": self.world,
            "bandwidth_bytes_per_s": self.bandwidth,
            "items": [{"name": i.name, "bytes": i.bytes, "ms": round(i.ms, 4)} for i in self.items],
            "bytes": sum(item.bytes for item in self.items),
            "collectives": self.collectives,
            "collective_us": round(self.collective_us, 3),
            "latency_source": self.latency_source,
            "memory_ms": round(self.memory_ms, 4),
            "collective_ms": round(self.collective_ms, 4),
            "step_ms": round(self.step_ms, 4),
            "tok_per_s": round(self.tok_per_s, 2),
        }


def distinct_experts(experts: int, top_k: int, tokens: int) -> float:
    """Experts that `tokens` uniformly routed tokens touch together."""
    return experts * (1 - (1 - top_k / experts) ** tokens) if experts else 0.0


def all_reduces(shapes: Shapes, tp: int) -> int:
    """Collectives of one decode step."""
    return 1 + shapes.layers * (3 if shapes.qk_norm else 2) if tp > 1 else 0


_LONGEST_US = 1e9


def roofline(
    shapes: Shapes, card: Card, tp: int, tokens: int = 1, context: int = 2048, kv_dtype: str = "auto",
    probe: Mapping[str, Any] | None = None,
) -> Roofline:  # fmt: skip
    """The ceiling for `card` at tensor-parallel size `tp`. `probe` is the all-reduce probe's JSON."""
    parts = shapes.weights_per_rank(tp)
    experts = (
        int(shapes.moe_layers * distinct_experts(shapes.num_experts, shapes.top_k, tokens) * shapes.expert_bytes(tp))
        if shapes.moe
        else 0
    )
    sizes = (
        ("experts", experts),
        ("attention projections", parts.attention),
        ("dense MLP", parts.dense_mlp),
        ("router", parts.router),
        ("lm_head", parts.lm_head or parts.embedding),
        ("KV cache", tokens * context * shapes.kv_bytes_per_token(tp, 1, kv_dtype)),
    )
    items = tuple(Item(name, count, count / card.bandwidth * 1e3) for name, count in sizes if count)
    latency, source = _latency(probe, tokens * shapes.hidden_size * 2, card)
    return Roofline(tokens, context, tp, card.bandwidth, items, all_reduces(shapes, tp), latency, source)


def _latency(probe: Mapping[str, Any] | None, message: int, card: Card) -> tuple[float, str]:
    """Microseconds of one all-reduce of `message` bytes: the probe's nearest row (graph, else median), or the table."""
    rows = probe.get("rows") if probe else None
    best: tuple[int, float] | None = None
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, Mapping) or row.get("ok") is False or not isinstance(row.get("bytes"), int):
            continue
        time = row.get("graph_us") or row.get("p50_us")
        distance = abs(row["bytes"] - message)
        if isinstance(time, (int, float)) and 0 < time < _LONGEST_US and (best is None or (distance, time) < best):
            best = (distance, float(time))
    if probe is not None and best is None:
        raise ValueError(
            "probe: no row with bytes and p50_us; wanted what `python -m xpu_moe.probe allreduce --json` prints"
        )
    return (best[1], _source(probe or {})) if best else (card.all_reduce_us, f"table: {card.source}")


def _source(probe: Mapping[str, Any]) -> str:
    backend, world, device = probe.get("backend"), probe.get("world"), probe.get("device")
    known = isinstance(backend, str) and isinstance(device, str) and type(world) is int
    return f"probe: {str(backend)[:20]} on {world} {str(device)[:20]} ranks" if known else "probe"


def probe_doubts(probe: Mapping[str, Any], card: Card, tp: int) -> list[str]:
    """Where the probe's run was another than the plan's: its device, its number of ranks, its verdict."""
    wanted = (("device", card.device), ("world", tp), ("verdict", "ok"))
    return [
        f"--probe: its {name} is {str(got)[:40]!r}, the plan wants {value!r}: the latency is of another run"
        for name, value in wanted
        if (got := probe.get(name)) is not None and got != value
    ]
