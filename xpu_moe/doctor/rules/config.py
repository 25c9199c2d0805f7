"""config.json: numbers that are none. What reads it takes a default in their place, or ends with a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.text import shown
from xpu_moe.formats.claims import MODEL_TYPES
from xpu_moe.plan.shapes import MISSING, faults, shown_value

Hit = dict[str, Any]
# transformers 5, MiniMaxM2Config: these are int, nothing else is taken
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "num_local_experts", "num_experts_per_tok",
)  # fmt: skip
ARCHITECTURE = "MiniMaxM2ForCausalLM"
WANTED = f'["{ARCHITECTURE}"]'
# field -> (is null a number that is not told, what it must be below)
_NUMBERS = {"rms_norm_eps": (False, 1.0), "rope_theta": (True, 1e18), "rotary_dim": (True, 1e18)}


def _judged(context: Context) -> bool:
    """Is this the config.json of a MiniMax folder that was looked at? Recorded facts may lack parts, or have null."""
    return context.model.files is not None and context.model.config.get("model_type") in MODEL_TYPES


def _wrong(context: Context) -> list[Hit]:
    hits = [*_sizes(context), *_numbers(context)]
    return [{"field": field, "says": shown(says, 200)} for field, says in hits]


def _sizes(context: Context) -> Iterator[tuple[str, str]]:
    judged = _judged(context)
    for field, says in faults(context.model.config, SIZES if judged else ()):
        if says != MISSING and (judged or _value(context, field) is not None):
            yield field, says


def _numbers(context: Context) -> Iterator[tuple[str, str]]:
    for field, (optional, most) in _NUMBERS.items():
        value = _value(context, field)
        if not context.minimax or field not in context.model.config or (value is None and not _judged(context)):
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 < value < most) and not (optional and value is None):
            yield field, f"got {shown_value(value)}, wanted a number above 0{' and below 1' if most == 1 else ''}"


def _too_many(context: Context) -> Hit | None:
    """More experts for a token than there are."""
    top, experts = (_value(context, field) for field in ("num_experts_per_tok", "num_local_experts"))
    wrong = context.minimax and all(type(n) is int and n > 0 for n in (top, experts)) and top > experts
    return {"top": top, "experts": experts} if wrong else None


def _value(context: Context, field: str) -> Any:
    text = context.model.config.get("text_config")
    return {**context.model.config, **(text if isinstance(text, dict) else {})}.get(field)


def _missing(context: Context) -> Hit | None:
    if not _judged(context):
        return None
    lost = [field for field, says in faults(context.model.config, SIZES) if says == MISSING]
    return {"fields": ", ".join(lost)} if lost else None


def _architectures(context: Context) -> Hit | None:
    """Without one vLLM starts a server that has no endpoint to complete text."""
    if not _judged(context):
        return None
    value = context.model.config.get("architectures")
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
        there = "architectures" in context.model.config
        got = "an empty list" if value == [] else shown_value(value)
        return {"says": f"{f'got {got}' if there else 'not there'}, wanted {WANTED}"}
    if ARCHITECTURE not in value:
        return {"says": f"got {shown(', '.join(value))}, wanted {WANTED}", "severity": "warn"}
    return None


def _attention_types(context: Context) -> Hit | None:
    """vLLM counts the ones of it."""
    value, layers = (_value(context, field) for field in ("attn_type_list", "num_hidden_layers"))
    if not _judged(context) or value is None:
        return None
    if not isinstance(value, list) or not all(type(kind) is int for kind in value):
        return {"says": f"got {shown_value(value)}, wanted a list with a 1 for each layer"}
    if type(layers) is int and len(value) < layers:
        return {"says": f"has {len(value)} entries for {layers} layers", "severity": "warn"}
    return None


RULE = Rule(
    "config.json with numbers that are none",
    "Sizes as text, as fractions, zero, negative or null: transformers refuses some, vLLM ends in its arithmetic.",
    (
        Row(
            "config.number", "error", "model.config.{field}",
            "config.json has a {field} that is no such number",
            "{field}: {says}.",
            "take config.json and weights from the same export; do not edit it",
            "transformers MiniMaxM2Config, vLLM minimax_m2.py", _wrong,
        ),
        Row(
            "config.top-k", "error", "model.config.num_experts_per_tok",
            "config.json routes a token to {top} of {experts} experts",
            "The router's top-k ends the first forward pass.",
            "take config.json and weights from the same export; do not edit it",
            "transformers MiniMaxM2Config", _too_many,
        ),
        Row(
            "config.missing", "warn", "model.config",
            "config.json lacks sizes of the model",
            "Not there: {fields}. transformers takes those of MiniMax-M2 instead, which need not be this model's.",
            "take config.json and weights from the same export",
            "transformers MiniMaxM2Config", _missing,
        ),
        Row(
            "config.architectures", "error", "model.config.architectures",
            "config.json does not name the model's class",
            "architectures: {says}. Without its class vLLM starts a server that answers no completion (HTTP 404).",
            f"write {WANTED} there, or take config.json from the export again",
            "vLLM config/model.py", _architectures,
        ),
        Row(
            "config.attention-types", "error", "model.config.attn_type_list",
            "config.json has an attn_type_list that is none",
            "attn_type_list: {says}.",
            "take config.json and weights from the same export; do not edit it",
            "vLLM config/model.py", _attention_types,
        ),
    ),
)  # fmt: skip
