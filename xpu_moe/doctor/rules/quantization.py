"""quantization_config of a folder that was looked at: is it one, and are the experts stored as it says?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.text import shown
from xpu_moe.formats.claims import NAMES

Hit = dict[str, Any]
# vLLM 0.32, quantization/__init__.py, those of earlier versions, and spellings that it takes for one of them
KNOWN = (
    "gptq", "gptq_marlin", "auto_gptq", "auto-round", "auto_round", "autoround", "intel/auto-round", "inc", "awq",
    "awq_marlin", "auto_awq", "fp8", "compressed-tensors", "bitsandbytes", "modelopt", "modelopt_fp4",
    "modelopt_mxfp8", "modelopt_mixed", "mxfp4", "mxfp8", "gpt_oss_mxfp4", "fbgemm_fp8", "fp_quant", "quark", "torchao",
    "moe_wna16", "experts_int8", "humming", "online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel",
    "int8_per_channel_weight_only", "nvfp4_per_token", "deepseek_v4_fp8", "gguf", "hqq", "aqlm", "ptpc_fp8", "bitblas",
    "gptq_bitblas", "rtn", "ipex", "petit_nvfp4", "cpu_awq", "marlin", "gptq_marlin_24", "qqq", "deepspeedfp",
    "tpu_int8", "compressed_tensors",
)  # fmt: skip
_OURS = ("auto-round", "gptq", "fp8")
# other keys by which a writer names its method
_NAMED = (
    "quant_method",
    "quant_algo",
    "load_in_4bit",
    "load_in_8bit",
    "_load_in_4bit",
    "_load_in_8bit",
    "quantization",
)
_PACKED = frozenset({"qweight", "weight_packed"})
_ENDS = _PACKED | {"weight_scale_inv"}


def _raw(context: Context) -> Any:
    """What config.json has there; None for recorded facts, which may lack parts."""
    return context.model.config.get("quantization_config") if context.model.files is not None else None


def _method(raw: Mapping[str, Any]) -> str:
    method = raw.get("quant_method")
    return method.lower() if isinstance(method, str) else ""


def _malformed(context: Context) -> Hit | None:
    raw = _raw(context)
    says = next(_wrong(raw), None) if raw is not None else None
    return {"says": shown(says, 300)} if says else None


def _wrong(raw: Any) -> Iterator[str]:
    if not isinstance(raw, dict):
        yield f"quantization_config: got {type(raw).__name__}, wanted an object"
        return
    method = raw.get("quant_method")
    if method is not None and (not isinstance(method, str) or not method.strip()):
        yield f"quantization_config.quant_method: got {method!r}, wanted the name of a method"
    elif raw and not any(raw.get(name) for name in _NAMED):
        yield f"quantization_config: has {', '.join(map(str, list(raw)[:8]))}, and no quant_method"
    if _method(raw) == "fp8":
        yield from _wrong_fp8(raw)


def _wrong_fp8(raw: Mapping[str, Any]) -> Iterator[str]:
    block, scheme = raw.get("weight_block_size"), raw.get("activation_scheme")
    if block is not None and not _is_block(block):
        yield f"quantization_config.weight_block_size: got {block!r}, wanted two whole numbers above 0 ([128, 128])"
    if scheme is not None and scheme not in ("static", "dynamic"):
        yield f"quantization_config.activation_scheme: got {scheme!r}, wanted 'dynamic' or 'static'"
    elif block is not None and scheme == "static":
        yield "quantization_config.activation_scheme: got 'static', vLLM takes blocks with 'dynamic' alone"


def _is_block(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(side) is int and side > 0 for side in value)


def _unknown(context: Context) -> Hit | None:
    raw = _raw(context)
    method = _method(raw) if isinstance(raw, dict) else ""
    return {"method": shown(repr(method))} if method.strip() and method not in (*KNOWN, *NAMES) else None


def _contradicted(context: Context) -> Hit | None:
    """The experts' tensors are those of another method."""
    raw, names = _raw(context), context.model.tensor_names or ()
    if not isinstance(raw, dict) or next(_wrong(raw), None):
        return None
    method, stored = _method(raw), _stored(names)
    if method == "fp8":
        wrong = [stored[part] for part in sorted(_PACKED & stored.keys())]
    elif method in ("gptq", "gptq_marlin", "awq", "awq_marlin") or _is_int_round(raw, method):
        wrong = [] if "qweight" in stored else list(stored.values())
    else:
        wrong = []
    return {"says": f"config.json says {method}, whose experts have no {wrong[0]}"} if wrong else None


def _stored(names: Iterable[str]) -> dict[str, str]:
    """What the experts' tensors are called at the end -> the first such name."""
    found: dict[str, str] = {}
    for name in names:
        end = name.rpartition(".")[2]
        if end in _ENDS and ".experts." in name and name < found.get(end, "~"):
            found[end] = name
    return found


def _is_int_round(raw: Mapping[str, Any], method: str) -> bool:
    """AutoRound of integers packed as GPTQ or AWQ are (it writes other kinds as well)."""
    packing = str(raw.get("packing_format", "auto_gptq"))
    return method.replace("_", "-") == "auto-round" and raw.get("data_type", "int") == "int" and "auto_" in packing


RULE = Rule(
    "quantization_config that is none, or another one's",
    "Read in config.json, and compared with the names of the experts' tensors.",
    (
        Row(
            "quantization.malformed", "error", "model.config.quantization_config",
            "config.json has no usable quantization_config",
            "{says}.",
            "take config.json and weights from the same export; do not edit it",
            "vLLM, quantization configs", _malformed,
        ),
        Row(
            "quantization.contradicted", "error", "model.config.quantization_config",
            "config.json tells another quantisation than the weights have",
            "{says}.",
            "take config.json and weights from the same export",
            "xpu_moe/formats/layout.py", _contradicted,
        ),
        Row(
            "quantization.unknown", "warn", "model.config.quantization_config",
            "quant_method {method} is not known",
            f"vLLM refuses a method that it does not know. Served here: {', '.join(_OURS)}; vLLM's own besides, such "
            "as awq, compressed-tensors, modelopt, mxfp4.",
            "take an AutoRound or GPTQ INT4 or an FP8 checkpoint; nothing, if a plugin of vLLM brings the method",
            "vLLM, quantization/__init__.py", _unknown,
        ),
    ),
)  # fmt: skip
