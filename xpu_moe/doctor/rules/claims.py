"""The plugin's own judgement of a checkpoint, asked before the load instead of met in the middle of it."""

from __future__ import annotations

from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.rules.splits import tp_problem
from xpu_moe.doctor.text import shown
from xpu_moe.formats.claims import (
    AUTO_ROUND,
    GPTQ,
    MODEL_TYPES,
    Claim,
    experts_of_layer,
    judge_fp8,
    judge_int4,
)
from xpu_moe.formats.patterns import EndlessPattern
from xpu_moe.formats.quantization import UnsupportedCheckpoint, is_int4

Hit = dict[str, Any]
_LEFT = {"awq": "AWQ", "awq_marlin": "AWQ", "compressed-tensors": "compressed-tensors"}
_BY_LAYER = ("extra_config", "dynamic", "block_name_to_quantize", "to_quant_block_names")
_MOST_LAYERS, _MOST_EXPERTS = 1000, 4096  # of any model: more are a mistake in foreign facts


def is_judged(context: Context) -> bool:
    """Is this a checkpoint of the family that the plugin takes or refuses by itself?"""
    return _model_type(context) in MODEL_TYPES and is_int4(context.model.quantization)


def _model_type(context: Context) -> str:
    return str(context.model.config.get("model_type") or "")


def _config(context: Context) -> dict[str, Any]:
    """quantization_config as it is on the disk; of recorded facts what is absent counts as usual, not as wrong."""
    told = dict(context.model.quantization)
    if context.model.files is not None:
        return told
    return {"bits": 4, "group_size": 128, **{name: value for name, value in told.items() if value is not None}}


def _claim(context: Context, device: str) -> Claim:
    """What the plugin answers for the checkpoint. Raises UnsupportedCheckpoint as it does."""
    config, kind, asked = _config(context), _model_type(context), context.plan.quantization
    claims = [judge_int4(own, config, kind, asked, device) for own in (AUTO_ROUND, GPTQ)]
    claims.append(judge_fp8(config, kind, asked, device))
    taken = next((claim for claim in claims if claim.name), None)
    if taken is not None and taken.name in (AUTO_ROUND, GPTQ):
        _experts(context, config)
    return taken or next((claim for claim in claims if claim.reason), claims[0])


def _experts(context: Context, config: dict[str, Any]) -> None:
    """The overrides of every layer, where config.json tells how many there are."""
    shapes = context.shapes
    if shapes is None or not any(config.get(field) for field in _BY_LAYER):
        return
    for layer in range(min(shapes.layers, _MOST_LAYERS)):
        experts_of_layer(config, layer, min(shapes.num_experts, _MOST_EXPERTS))


def _refused(context: Context) -> Hit | None:
    quant = context.model.quantization
    if not quant or not (is_judged(context) or str(context.plan.quantization or "").startswith("xpu_moe_")):
        return None
    device = context.device
    try:
        _claim(context, device or "cpu")
    except EndlessPattern:
        return None  # `_endless` speaks of it
    except UnsupportedCheckpoint as error:
        if device is None:  # on CUDA vLLM may serve it
            return {"says": f"{shown(error, 300)}: on XPU and CPU nothing serves it", "severity": "info"}
        cut = "group_size" in str(error) and context.plan.tp and tp_problem(context, context.plan.tp)
        # a group that forbids the cut as well is said of the plan, as the launcher says it
        return {"says": shown(error, 300), "severity": "info" if cut else "error"}
    return None


def _endless(context: Context) -> Hit | None:
    if not context.model.quantization or not is_judged(context):
        return None
    try:
        _claim(context, context.device or "cpu")
    except EndlessPattern as error:
        return {"says": shown(error, 300)}
    except UnsupportedCheckpoint:
        return None
    return None


def _left(context: Context) -> Hit | None:
    """Checkpoints of our model that are left to vLLM."""
    quant = context.model.quantization
    if _model_type(context) not in MODEL_TYPES or not quant:
        return None
    method = _LEFT.get(str(quant.get("quant_method") or "").lower())
    if method:
        return {"says": f"The plugin takes no {method} checkpoint, so none of our kernels runs its experts"}
    if not is_judged(context) or context.device is None:
        return None
    try:
        reason = _claim(context, context.device).reason
    except UnsupportedCheckpoint:
        return None
    return {"says": f"The plugin does not take it: {shown(reason, 300)}"} if reason else None


RULE = Rule(
    "checkpoint that the plugin refuses or leaves",
    "What the vLLM plugin will say of the checkpoint (docs/serving.md), asked of the same code.",
    (
        Row(
            "claims.refused", "error", "model.quantization_config",
            "the plugin refuses this quantisation",
            "{says}.",
            "take a symmetric 4-bit AutoRound or GPTQ checkpoint of group 128 (32 and 64 are served too)",
            "xpu_moe/formats/claims.py", _refused,
        ),
        Row(
            "claims.endless", "error", "model.quantization_config",
            "matching a pattern of the quantisation's overrides does not end",
            "{says}. The plugin refuses such a pattern rather than wait for it.",
            "write that pattern in config.json without a repetition inside of a repetition, or take another export",
            "xpu_moe/formats/patterns.py", _endless,
        ),
        Row(
            "claims.left", "info", "model.quantization_config",
            "this checkpoint is left to vLLM",
            "{says}.",
            f"nothing, if that is meant; ours are AutoRound and GPTQ, 4 bits, symmetric, on {', '.join(MODEL_TYPES)}",
            "xpu_moe/formats/claims.py", _left,
        ),
    ),
)  # fmt: skip
