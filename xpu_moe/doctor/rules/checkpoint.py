"""The checkpoint: tensors it must not have, tensors it lacks, shards that are missing."""

from __future__ import annotations

import errno
import os
import re
from typing import Any

from xpu_moe.doctor.records import Fault
from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.text import quoted

Hit = dict[str, Any]
# suffixes that a quantised matrix leaves instead of, or beside, `weight`
_QUANT = (
    r"(?:qweight|qzeros|scales|zeros|g_idx|weight_packed|weight_scale(?:_inv|_2)?|weight_zero_point|"
    r"weight_g_idx|weight_shape|weight_global_scale|input_scale|(?:weight[._])?(?:absmax|quant_map|quant_state\S*)|SCB)"
)
_GATE = re.compile(
    rf"(?:^|\.)(?:gate|router|gate\.wg|router\.layer|gate_linear|router\.classifier|shared_expert_gate)\.{_QUANT}$"
)
_PLAIN = re.compile(rf"(?:norm\d*|layernorm|embed_tokens|wte|e_score_correction_bias)\.{_QUANT}$")
_HEAD = re.compile(rf"(?:^|\.)lm_head\.{_QUANT}$")
_EXPERT = re.compile(r"\.experts\.")
_ANY_QUANT = re.compile(rf"\.{_QUANT}$")


def _example(names: list[str]) -> Hit:
    return {"example": names[0], "count": len(names)}


def _router(context: Context) -> Hit | None:
    found = sorted(name for name in context.model.tensor_names or () if _GATE.search(name))
    return _example(found) if found else None


def _plain(context: Context) -> Hit | None:
    found = sorted(name for name in context.model.tensor_names or () if _PLAIN.search(name))
    return _example(found) if found else None


def _head(context: Context) -> Hit | None:
    quant = context.shapes.quant if context.shapes else None
    found = sorted(name for name in context.model.tensor_names or () if _HEAD.search(name))
    return _example(found) if found and not (quant and quant.lm_head) else None


def _scales(context: Context) -> Hit | None:
    """A packed matrix without its scales."""
    names = context.model.tensor_names or frozenset()
    lost = []
    for name in names:
        for packed, partner in ((".qweight", ".scales"), (".weight_packed", ".weight_scale")):
            if name.endswith(packed) and name.removesuffix(packed) + partner not in names:
                lost.append(name.removesuffix(packed) + partner)
    return _example(sorted(lost)) if lost else None


def _block_scales(context: Context) -> Hit | None:
    """Block-scaled FP8 experts without scales: `weight_scale_inv` beside each `weight`."""
    quant, names = (context.shapes.quant if context.shapes else None), context.model.tensor_names or frozenset()
    if quant is None or quant.block is None or quant.method != "fp8":
        return None
    lost = sorted(
        name + "_scale_inv"
        for name in names
        if _EXPERT.search(name) and name.endswith(".weight") and name + "_scale_inv" not in names
    )
    return _example(lost) if lost else None


def _whole(context: Context) -> bool:
    """Do the names cover every layer? Recorded facts often hold a sample of them: what a sample lacks means nothing."""
    shapes, names = context.shapes, context.model.tensor_names or frozenset()
    layers = {found.group(1) for name in names if (found := re.search(r"\.layers\.(\d+)\.", name))}
    return shapes is not None and len(layers) >= shapes.layers


def _bias(context: Context) -> bool:
    names = context.model.tensor_names
    wanted = context.minimax and context.model.config.get("use_routing_bias") is True and names is not None
    return bool(
        wanted
        and any(_EXPERT.search(n) for n in names or ())
        and not any("e_score_correction_bias" in n for n in names or ())
    )


def _no_router(context: Context) -> bool:
    names = context.model.tensor_names or frozenset()
    if not context.minimax or not any(_EXPERT.search(name) for name in names):
        return False
    return not any(".gate." in name or ".router." in name for name in names)


def _head_missing(context: Context) -> bool:
    names, shapes = context.model.tensor_names, context.shapes
    if not names or shapes is None or shapes.tied or not _whole(context):
        return False
    return not any(name.split(".")[0] == "lm_head" or ".lm_head." in name for name in names)


def _qk_norm(context: Context) -> bool:
    names = context.model.tensor_names or frozenset()
    if not _whole(context) or context.model.config.get("use_qk_norm") is not True:
        return False
    return any(".self_attn." in n for n in names) and not any(".q_norm." in n for n in names)


def _experts_unlike_config(context: Context) -> Hit | None:
    """config.json says quantised and the experts are plain, or the other way round."""
    names, shapes = context.model.tensor_names or frozenset(), context.shapes
    experts = [name for name in names if _EXPERT.search(name)]
    if shapes is None or not experts:
        return None
    packed = any(_ANY_QUANT.search(name) for name in experts)
    quant = shapes.quant
    if quant is not None and quant.bits < 16 and not packed:
        return {
            "about": "model.tensor_names",
            "says": f"config.json says {quant.method}, the experts are plain weights",
        }
    if quant is None and packed and context.model.quantization_empty:
        return {
            "about": "model.quantization_config",
            "says": "the experts are quantised, config.json has no quantization_config",
        }
    return None


def _shapes(context: Context) -> Hit | None:
    unlike = context.model.unlike_config
    return {"first": unlike[0], "count": unlike[1]} if unlike else None


def _shards(context: Context) -> Hit | None:
    missing = context.model.shards_missing
    return {"example": missing[0], "count": len(missing)} if missing else None


def _index(context: Context) -> Hit | None:
    """What the reader said is wrong, and what it advises; facts of earlier releases have both in one sentence."""
    model, says, advice = context.model, context.model.index_error, context.model.index_advice
    if not says:
        return None
    file = says.partition(": ")[0]
    if says.endswith(f": {os.strerror(errno.EACCES)}"):
        advice = readable(model.path(file))
    return {"says": f"{model.path(file)}{says.removeprefix(file)}", "fix": advice or "download the checkpoint again"}


def readable(path: str) -> str:
    """What makes a file readable to the user who serves."""
    whole = quoted(path)
    return f"chmod a+r {whole} (and a+x on the folders above), or chown it to the user who serves"


def _header(context: Context) -> Hit | None:
    fault = context.model.header_error
    return _of_file(context, fault) if fault else None


def _lost(context: Context) -> Hit | None:
    fault = context.model.tensors_lost
    return _of_file(context, fault) if fault else None


def _of_file(context: Context, fault: Fault) -> Hit:
    more = f" (and {fault.count - 1} more)" if fault.count > 1 else ""
    path = context.model.path(fault.file)
    return {"first": fault.first, "file": fault.file, "path": path, "count": fault.count, "more": more}


def _mtp_advertised(context: Context) -> bool:
    names, shapes = context.model.tensor_names, context.shapes
    advertised = context.model.config.get("use_mtp") is True
    if not advertised or names is None or shapes is None or context.plan.speculative_method:
        return False
    return not any("mtp" in n.lower() or f"layers.{shapes.layers}." in n for n in names)


RULE = Rule(
    "checkpoint has tensors it must not have, or lacks some",
    "Read from the safetensors index and headers, before any weight is loaded.",
    (
        Row(
            "checkpoint.router", "error", "model.tensor_names",
            "the router is quantised",
            "vLLM loads it as a plain fp32 matrix and ends with a KeyError at {example} ({count} such tensors).",
            "take an export that keeps the router (…gate) unquantised",
            "intel/auto-round#1462", _router,
        ),
        Row(
            "checkpoint.plain", "error", "model.tensor_names",
            "a norm or the embedding is quantised",
            "The engine expects a plain tensor: {example} ({count} such tensors).",
            "take another export",
            "B70 field notes 12", _plain,
        ),
        Row(
            "checkpoint.head", "warn", "model.tensor_names",
            "lm_head is quantised and config.json does not say so",
            "{example}: loading may fail with a KeyError.",
            "take an export with a plain lm_head",
            "B70 field notes 12", _head,
        ),
        Row(
            "checkpoint.scales", "error", "model.tensor_names",
            "{count} scale tensors are missing",
            "A packed matrix needs its scales; the first that is missing: {example}.",
            "download the checkpoint again",
            "GPTQ, AutoRound and compressed-tensors layouts", _scales,
        ),
        Row(
            "checkpoint.block-scales", "error", "model.tensor_names",
            "{count} block scales are missing",
            "Each FP8 matrix needs its weight_scale_inv; the first that is missing: {example}.",
            "download the checkpoint again",
            "FP8 block layout", _block_scales,
        ),
        Row(
            "checkpoint.bias", "error", "model.tensor_names",
            "the routing bias is missing",
            "config.json says use_routing_bias and no e_score_correction_bias is there: routes would be wrong.",
            "take another export",
            "config.json", _bias,
        ),
        Row(
            "checkpoint.no-router", "error", "model.tensor_names",
            "the router is missing",
            "There are experts and no gate tensor.",
            "download the checkpoint again",
            "config.json", _no_router,
        ),
        Row(
            "checkpoint.no-head", "error", "model.tensor_names",
            "lm_head is missing",
            "The embeddings are not tied, so the last layer needs its own weights.",
            "download the checkpoint again",
            "config.json", _head_missing,
        ),
        Row(
            "checkpoint.qk-norm", "error", "model.tensor_names",
            "the Q/K norms are missing",
            "config.json says use_qk_norm and no q_norm is there.",
            "take another export",
            "config.json", _qk_norm,
        ),
        Row(
            "checkpoint.unlike-config", "error", "{about}",
            "weights and config.json disagree",
            "{says}.",
            "take both files from the same export",
            "config.json", _experts_unlike_config,
        ),
        Row(
            "checkpoint.shapes", "error", "model.tensor_names",
            "{count} tensors are not those of config.json",
            "{first}.",
            "take config.json and all shards from the same export",
            "xpu_moe/formats/layout.py; transformers MiniMaxM2Config", _shapes,
        ),
        Row(
            "checkpoint.shards", "error", "model.shards_missing",
            "{count} files of the checkpoint are missing",
            "The index names {example}, the folder does not have it.",
            "download the checkpoint again",
            "safetensors index", _shards,
        ),
        Row(
            "checkpoint.index", "error", "model.index_error",
            "the checkpoint cannot be read",
            "{says}.",
            "{fix}",
            "safetensors index and headers", _index, under=("model.files",),
        ),
        Row(
            "checkpoint.header", "error", "model.header_error",
            "{file} is damaged",
            "{path}: {first}{more}. safetensors refuses the file, and its message names neither file nor tensor.",
            "download {file} again",
            "safetensors, the checks of its reader", _header, under=("model.index_error",),
        ),
        Row(
            "checkpoint.lost", "error", "model.tensors_lost",
            "{count} tensors of the index are in no file",
            "The index says that {path} holds {first}; neither it nor another file does.",
            "download {file} and the index again, both from the same export",
            "safetensors index and headers", _lost,
        ),
        Row(
            "checkpoint.mtp", "info", "model.tensor_names",
            "config.json advertises MTP, the weights have none",
            "Harmless as long as no mtp speculation is asked for.",
            "nothing",
            "MiniMax-AI/MiniMax-M2#47", _mtp_advertised,
        ),
    ),
)  # fmt: skip
