"""Which checkpoints the vLLM plugin takes, from their config alone: asked by the plugin and by the doctor.

Needs neither torch nor vLLM.

A symmetric 4-bit AutoRound or GPTQ checkpoint of a MiniMax model is claimed without a flag. What looks like one and
cannot be served is an error that names the field where stock vLLM could not serve it either (CPU, XPU) or where the
plugin was asked for by name; on CUDA it is left to vLLM, with a line in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xpu_moe.formats.overrides import NOT_QUANTISED, may_name, overrides, told
from xpu_moe.formats.quantization import GROUP_SIZES, Int4Spec, UnsupportedCheckpoint, is_int4, read_int4

MODEL_TYPES = ("minimax_m2",)
AUTO_ROUND, GPTQ, FP8 = "xpu_moe_auto_round", "xpu_moe_gptq", "xpu_moe_fp8"
NAMES = (AUTO_ROUND, GPTQ, FP8)
STOCK_NAMES = {AUTO_ROUND: "inc", GPTQ: "gptq", FP8: "fp8"}
# Where stock vLLM serves INT4 mixtures of other kinds than ours (asymmetric, 8 bit) itself.
STOCK_SERVES_OTHERS = ("cuda", "rocm")
_PARTS = ("w1", "w3", "w2")


@dataclass(frozen=True)
class Claim:
    """`name` of the quantization method that takes the checkpoint; None with a `reason`, "" = not our business."""

    name: str | None
    reason: str = ""


def judge_int4(own: str, config: Mapping[str, Any], model_type: str, asked: str | None, device: str) -> Claim:
    """Whether the method `own` (AUTO_ROUND or GPTQ) takes the checkpoint with this quantization_config.

    `asked` is the user's `--quantization`. Raises UnsupportedCheckpoint (see the top of this file).
    """
    family = GPTQ if str(config.get("quant_method", "")).lower() == "gptq" else AUTO_ROUND
    if not is_int4(config) or family != own:
        return Claim(None)
    if asked not in (None, own):
        return Claim(None, f"--quantization {asked} was asked for")
    if model_type not in MODEL_TYPES:
        if asked == own:
            raise UnsupportedCheckpoint(f"config.model_type: got {model_type!r}, wanted {' or '.join(MODEL_TYPES)}")
        return Claim(None)
    try:
        read_int4(config)
    except UnsupportedCheckpoint as error:
        if asked == own or device not in STOCK_SERVES_OTHERS:
            raise
        return Claim(None, str(error))
    return Claim(own)


def judge_fp8(config: Mapping[str, Any], model_type: str, asked: str | None, device: str) -> Claim:
    """Whether FP8 takes the checkpoint: on a CPU, where stock vLLM cannot without AMX, and where it is asked for.

    On CUDA vLLM serves these checkpoints itself; `--quantization xpu_moe_fp8` gives them to our kernels. Raises
    UnsupportedCheckpoint when asked for a checkpoint of another kind.
    """
    wanted = (
        ("quant_method", config.get("quant_method"), "fp8"),
        ("weight_block_size", config.get("weight_block_size"), [128, 128]),
        ("activation_scheme", config.get("activation_scheme"), "dynamic"),
        ("model_type", model_type, MODEL_TYPES[0]),
    )
    wrong = [
        f"quantization_config.{name}: got {got!r}, wanted {value!r}" for name, got, value in wanted if got != value
    ]
    if asked == FP8:
        if wrong:
            raise UnsupportedCheckpoint(wrong[0])
        return Claim(FP8)
    return Claim(FP8 if not wrong and asked is None and device == "cpu" else None)


@dataclass(frozen=True)
class Experts:
    """How a layer's experts are stored: `spec` None = not quantised."""

    spec: Int4Spec | None


def experts_of_layer(config: Mapping[str, Any], layer: int, num_experts: int) -> Experts:
    """The experts' format in one layer: the checkpoint-wide one, or what an override for their names says.

    vLLM compares overrides with its own name of the layer (`model.layers.N.mlp.experts`), which no checkpoint uses;
    here the checkpoint's names (`block_sparse_moe.experts.E.w1`) are compared too. Experts of one layer that differ
    are refused.
    """
    base = read_int4(config)
    above = f"model.layers.{layer}.block_sparse_moe.experts"
    rows = [row for row in overrides(config) if may_name(row, above, _PARTS)]
    own = f"model.layers.{layer}.mlp.experts"
    usual: Mapping[str, Any] = {} if _is_in_a_block(config, own) else NOT_QUANTISED
    if not rows:
        return Experts(None if usual else base)
    names = [f"{above}.{expert}.{part}" for expert in range(num_experts) for part in _PARTS]
    found: dict[tuple[Any, ...], str] = {}
    for name, fields in told(names, own, rows, usual).items():
        found.setdefault(_format(fields, base), name)
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise UnsupportedCheckpoint(
            f"quantization_config: {first} has (bits, group, sym) {one} and {second} {other}, "
            "wanted one format for all experts of a layer"
        )
    ((bits, group, symmetric), name) = next(iter(found.items()))
    if isinstance(bits, int) and bits >= 16:
        return Experts(None)
    for field, got, good, wanted in (
        ("bits", bits, bits == 4, "4 (or 16 for all experts of the layer)"),
        ("sym", symmetric, symmetric is True, "true"),
        ("group_size", group, group in GROUP_SIZES, " or ".join(map(str, GROUP_SIZES))),
    ):
        if not good:
            raise UnsupportedCheckpoint(
                f"quantization_config override of {name}: {field}: got {got!r}, wanted {wanted}"
            )
    return Experts(Int4Spec(base.method, int(group), base.zero_point))


def _is_in_a_block(config: Mapping[str, Any], module: str) -> bool:
    """Whether AutoRound quantised the module's block: as vLLM asks, by the start of the name; no blocks named = all."""
    if str(config.get("quant_method", "")).lower() == "gptq":
        return True
    told_blocks = config.get("block_name_to_quantize", config.get("to_quant_block_names"))
    blocks = told_blocks.split(",") if isinstance(told_blocks, str) else told_blocks
    if not blocks:
        return True
    if not isinstance(blocks, (list, tuple)) or not all(isinstance(block, str) for block in blocks):
        raise UnsupportedCheckpoint(
            f"quantization_config.block_name_to_quantize: got {str(told_blocks)[:100]!r}, wanted names of blocks"
        )
    return any(module.startswith(block) for block in blocks)


def _format(fields: Mapping[str, Any], base: Int4Spec) -> tuple[Any, ...]:
    """(bits, group, sym) that can be compared, whatever a checkpoint has there."""
    found = fields.get("bits", 4), fields.get("group_size", base.group_size), fields.get("sym", True)
    return tuple(value if isinstance(value, (int, float)) else repr(value) for value in found)
