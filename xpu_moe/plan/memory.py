"""One card's memory: weights, activations, graphs, reserve, and what is left for the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xpu_moe.plan.cards import Card
from xpu_moe.plan.shapes import Parts, Shapes
from xpu_moe.plan.sizes import gib

MINIMUM_BLOCKS = 1


@dataclass(frozen=True)
class Request:
    """What is asked. `kv_bytes` None = as much as is left under `utilization`; `reserve` None = the card's."""

    tp: int
    pp: int = 1
    max_model_len: int | None = None
    max_num_batched_tokens: int = 1024
    max_num_seqs: int = 1
    block_size: int = 64
    kv_dtype: str = "auto"
    kv_bytes: int | None = None
    utilization: float = 0.95
    graph: bool = False
    expert_parallel: bool = False
    reserve: int | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one rank. `kv_tokens` in whole blocks; `sequences` of max_model_len that the KV holds at once."""

    card: str
    card_bytes: int
    weights: Parts
    weights_source: str
    activation_bytes: int
    graph_bytes: int
    reserve_bytes: int
    kv_bytes: int
    kv_pinned: bool
    kv_bytes_per_token: int
    kv_bytes_per_block: int
    block_size: int
    kv_tokens: int
    max_model_len: int
    need_bytes: int
    sequences: int
    fits: bool
    why: str

    @property
    def used(self) -> int:
        return self.weights.total + self.activation_bytes + self.graph_bytes + self.reserve_bytes + self.kv_bytes

    @property
    def free(self) -> int:
        return max(0, self.card_bytes - self.used)

    def parts(self) -> tuple[tuple[str, int], ...]:
        """What the picture shows, in order."""
        rest = self.weights.total - self.weights.experts
        return (
            ("experts", self.weights.experts), ("other weights", rest), ("KV cache", self.kv_bytes),
            ("activations", self.activation_bytes), ("graphs", self.graph_bytes), ("reserve", self.reserve_bytes),
            ("free", self.free),
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """For JSON; all sizes in bytes of one rank."""
        return {
            "fits": self.fits,
            "why": self.why,
            "card": self.card,
            "card_bytes": self.card_bytes,
            "weights_bytes": self.weights.total,
            "weights_by_part": self.weights.as_dict(),
            "weights_source": self.weights_source,
            "activation_bytes": self.activation_bytes,
            "graph_bytes": self.graph_bytes,
            "reserve_bytes": self.reserve_bytes,
            "kv_cache_memory_bytes": self.kv_bytes,
            "kv_pinned": self.kv_pinned,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_per_block": self.kv_bytes_per_block,
            "block_size": self.block_size,
            "kv_tokens": self.kv_tokens,
            "max_model_len": self.max_model_len,
            "need_bytes": self.need_bytes,
            "sequences": self.sequences,
            "free_bytes": self.free,
        }


def kv_tokens(kv_bytes: int, bytes_per_token: int, block_size: int) -> int:
    """floor(bytes / (bytes_per_token x block)) x block: vLLM counts whole blocks."""
    return kv_bytes // (bytes_per_token * block_size) * block_size


def plan_memory(shapes: Shapes, weights: Parts, card: Card, request: Request, source: str = "config") -> MemoryPlan:
    """Divide one card. Never raises for a plan that does not fit: `fits` is False and `why` names the part."""
    token = shapes.kv_bytes_per_token(request.tp, request.pp, request.kv_dtype)
    block = token * request.block_size
    activation = shapes.activation_peak(request.max_num_batched_tokens, request.tp, request.max_num_seqs)
    graph = card.graph_pool if request.graph else 0
    reserve = card.reserve if request.reserve is None else request.reserve
    beside = weights.total + activation + graph + reserve
    left = int(card.usable_bytes * request.utilization) - beside
    kv = request.kv_bytes if request.kv_bytes is not None else max(0, left) // block * block
    tokens = kv_tokens(kv, token, request.block_size)
    length = request.max_model_len or min(shapes.max_positions or tokens, tokens)
    blocks = -(-length // request.block_size)
    need = blocks * block
    sequences = tokens // (blocks * request.block_size) if blocks else 0
    why = _why(weights.total, beside, kv, card, length, need)
    return MemoryPlan(
        card.key, card.usable_bytes, weights, source, activation, graph, reserve, kv, request.kv_bytes is not None,
        token, block, request.block_size, tokens, length, need, sequences, not why, why or _says(sequences, length),
    )  # fmt: skip


def _why(weights: int, beside: int, kv: int, card: Card, length: int, need: int) -> str:
    room = card.usable_bytes
    if weights > room:
        return f"weights of {weights / 2**30:.1f} GiB are more than the {room / 2**30:.1f} GiB of a {card.key}"
    if beside + kv > room:
        return f"weights, activations, graphs, reserve and KV are {gib(beside + kv - room)} too much"
    if not length:
        return f"{gib(kv)} of KV do not hold one block of tokens"
    if kv < need:
        return f"{gib(kv)} of KV do not hold one sequence of {length} tokens ({gib(need)})"
    return ""


def _says(sequences: int, length: int) -> str:
    return f"{sequences} sequence{'s' if sequences != 1 else ''} of {length} tokens at once"
