"""A model's dimensions from config.json, and the bytes that follow: weights by part and rank, KV of a token.

Any decoder with the usual names: dense, mixture of experts, shared experts, latent attention. What a config does not
tell is not guessed: `shapes_of` is None then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from xpu_moe.plan.quantization import Quant, quant_of

TYPES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
KV_TYPES = {
    "auto": 2, "bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "fp8_inc": 1, "int8": 1,
}  # fmt: skip
# families whose `intermediate_size` is that of dense layers: without `moe_intermediate_size` nobody knows an expert
_EXPERTS_APART = re.compile(r"(?:qwen|deepseek|glm|kimi)")
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads")
# names that writers have for one and the same size; the first is the usual one
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_top_k", "moe_topk",
    "moe_k",
)  # fmt: skip
INNER = ("intermediate_size", "ffn_hidden_size")
KINDS = ("layer_types", "attn_type_list")
_SIZES = (  # read with a default where they are absent
    *EXPERTS, "num_key_value_heads", "head_dim", "vocab_size", "intermediate_size", "moe_intermediate_size",
    "num_experts_per_tok", "kv_lora_rank",
)  # fmt: skip
MOST = (1 << 31) - 1
MISSING = "missing"
_VOCAB_PADDING = 64  # vLLM pads the vocabulary to a multiple of it for every rank


@dataclass(frozen=True)
class Parts:
    """Weight bytes of one rank by part."""

    experts: int
    attention: int
    dense_mlp: int
    router: int
    embedding: int
    lm_head: int
    norms: int

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))

    def as_dict(self) -> dict[str, int]:
        return {part.name: getattr(self, part.name) for part in fields(self)}


@dataclass(frozen=True)
class Shapes:
    """Names as in the house's vocabulary; `moe_intermediate` is one expert's, whole; `latent` 0 without MLA."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    moe_intermediate: int
    num_experts: int
    top_k: int
    dense_layers: int
    shared_intermediate: int
    vocab: int
    tied: bool
    element: int
    router_element: int
    qk_norm: bool
    latent: int
    max_positions: int | None
    attention_layers: int
    quant: Quant | None

    @property
    def moe(self) -> bool:
        return self.num_experts > 0

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.moe else 0

    def kv_heads_per_rank(self, tp: int) -> int:
        """KV heads of a rank: at least one, replicated when tp is larger."""
        return max(1, self.kv_heads // tp)

    def kv_bytes_per_token(self, tp: int, pp: int = 1, kv_dtype: str = "auto") -> int:
        """layers x 2 (K, V) x KV heads of the rank x head_dim x bytes; MLA keeps one latent vector on every rank."""
        element = KV_TYPES.get(kv_dtype.lower(), 2)
        if kv_dtype.lower() == "auto":
            element = self.element
        layers = -(-self.attention_layers // pp)
        if self.latent:
            return layers * self.latent * element
        return layers * 2 * self.kv_heads_per_rank(tp) * self.head_dim * element

    def expert_bytes(self, tp: int) -> int:
        """One expert's slice: w13 `[2I/tp, H]` and w2 `[H, I/tp]`."""
        slice_ = self.moe_intermediate // tp
        return self._matrix(2 * slice_, self.hidden_size) + self._matrix(self.hidden_size, slice_)

    def weights_per_rank(self, tp: int, pp: int = 1, expert_parallel: bool = False) -> Parts:
        """Bytes of the rank that holds most, by part. Expert parallelism keeps whole experts, 1/tp of them."""
        layers = -(-self.layers // pp)
        moe_layers = -(-self.moe_layers // pp)
        if expert_parallel:
            experts = moe_layers * -(-self.num_experts // tp) * self.expert_bytes(1)
        else:
            experts = moe_layers * self.num_experts * (self.expert_bytes(tp) if self.moe else 0)
        padded = -(-self.vocab // (_VOCAB_PADDING * tp)) * _VOCAB_PADDING
        embedding = padded * self.hidden_size * self.element
        head = 0 if self.tied else embedding
        if pp > 1:  # first and last stage hold one of them each
            head = 0
        dense = -(-self.dense_layers // pp) if self.moe else layers
        mlp = dense * self._mlp(self.intermediate // tp) + moe_layers * self._mlp(self.shared_intermediate // tp)
        norms = layers * (2 * self.hidden_size + self._norm_width(tp)) * self.element
        router = moe_layers * self.num_experts * (self.hidden_size * self.router_element + 4)
        return Parts(experts, layers * self._attention(tp), mlp, router, embedding, head, norms)

    def activation_peak(self, tokens: int, tp: int, max_num_seqs: int = 1) -> int:
        """Bytes of the largest moment of a forward pass (an estimate: residual, normed, and the widest layer).

        The MoE keeps top_k rows a token between its two products; logits are fp32, of the last tokens only.
        """
        rows = 3 * self.hidden_size
        attention = (self.heads // tp + 2 * self.kv_heads_per_rank(tp)) * self.head_dim + self.hidden_size
        moe = self.top_k * (3 * self.moe_intermediate // tp + self.hidden_size) if self.moe else 0
        dense = 3 * self.intermediate // tp
        logits = max_num_seqs * self.vocab * 4
        return tokens * (rows + max(attention, moe, dense)) * self.element + logits

    def _matrix(self, rows: int, columns: int) -> int:
        if self.quant is None:
            return rows * columns * self.element
        return self.quant.matrix_bytes(rows, columns, self.element)

    def _mlp(self, width: int) -> int:
        if not width:
            return 0
        return self._matrix(2 * width, self.hidden_size) + self._matrix(self.hidden_size, width)

    def _attention(self, tp: int) -> int:
        queries = -(-self.heads // tp) * self.head_dim
        if self.latent:  # down- and up-projections; the latent part is replicated
            return self._matrix(queries, self.hidden_size) * 2 + self._matrix(self.latent, self.hidden_size)
        keys = self.kv_heads_per_rank(tp) * self.head_dim
        return self._matrix(queries + 2 * keys, self.hidden_size) + self._matrix(self.hidden_size, queries)

    def _norm_width(self, tp: int) -> int:
        if not self.qk_norm:
            return 0
        return (-(-self.heads // tp) + self.kv_heads_per_rank(tp)) * self.head_dim


def shapes_of(config: Mapping[str, Any], quantization: Mapping[str, Any] | None = None) -> Shapes | None:
    """The dimensions in a config.json; None where `faults` has something to say.

    Other keys that are no sizes are as if absent: who counts on them asks `checks.check` first."""
    config = language_part(config)

    def number(*names: str, default: int = 0) -> int:
        return next((config[name] for name in names if is_size(config.get(name))), default)

    if faults(config):
        return None
    hidden, layers, heads = (number(name) for name in NEEDED)
    experts = number(*EXPERTS)
    inner = number(*INNER)
    one = number("moe_intermediate_size", default=inner)
    latent = number("kv_lora_rank")
    kinds = next((config[name] for name in KINDS if config.get(name)), None)
    raw = quantization or config.get("quantization_config")
    return Shapes(
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", default=max(1, hidden // heads)),
        intermediate=inner,
        moe_intermediate=one if experts else 0,
        num_experts=experts,
        top_k=number(*TOP_K, default=1) if experts else 0,
        dense_layers=min(number("first_k_dense_replace"), layers) if experts else layers,
        shared_intermediate=number("shared_expert_intermediate_size", "shared_intermediate_size")
        or number("n_shared_experts") * one,
        vocab=number("vocab_size"),
        tied=config.get("tie_word_embeddings") is True,
        element=TYPES.get(str(config.get("torch_dtype") or config.get("dtype")).removeprefix("torch."), 2),
        router_element=4 if str(config.get("model_type", "")).startswith("minimax") else 2,
        qk_norm=config.get("use_qk_norm") is True,
        latent=latent + number("qk_rope_head_dim") if latent else 0,
        max_positions=number("max_position_embeddings") or None,
        attention_layers=_attention_layers(kinds, layers),
        quant=quant_of(raw) if isinstance(raw, Mapping) else None,
    )


def faults(config: Mapping[str, Any], needed: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(field, MISSING or "got …, wanted …") of the sizes that a config.json does not tell, the missing ones first.

    `needed` are sizes that it must have beside those that no model is without; others may be absent, null or 0."""
    config = language_part(config)
    names = [*NEEDED, *needed]
    if any(is_size(config.get(name)) for name in EXPERTS) and _EXPERTS_APART.match(str(config.get("model_type"))):
        names.append("moe_intermediate_size")
    names = list(dict.fromkeys(names))
    missing = [(name, MISSING) for name in names if name not in config]
    names += [name for name in _SIZES if name not in names and _is_no_size(config.get(name))]
    wrong = [(name, config[name]) for name in names if name in config and not is_size(config[name])]
    wanted = f"wanted a whole number between 1 and {MOST}"
    return missing + [(name, f"got {shown_value(value)}, {wanted}") for name, value in wrong]


def _is_no_size(value: Any) -> bool:
    """A number that cannot be one, or a text: not what writers put where a model has none of it (null, 0, a list)."""
    return isinstance(value, str | float) or (isinstance(value, int) and value != 0 and not is_size(value))


def shown_value(value: Any) -> str:
    """A value of a config.json for a sentence: as it stands there, if that is short."""
    if isinstance(value, int) and abs(value) > 1 << 128:  # Python refuses to print very long ones
        return f"a number of {value.bit_length()} bits"
    return json.dumps(value)[:40] if isinstance(value, int | float | str | None) else type(value).__name__


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the language model's part of a config that has several on top."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, Mapping) else config


def is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST


def _attention_layers(kinds: Any, layers: int) -> int:
    """Layers that keep a KV cache: linear-attention layers keep a state instead."""
    if not isinstance(kinds, list) or len(kinds) != layers:
        return layers
    return of_attention(kinds)


def of_attention(kinds: Sequence[Any]) -> int:
    """How many of `layer_types` or `attn_type_list` are layers of attention."""
    return sum(kind not in ("linear_attention", 0) for kind in kinds)
