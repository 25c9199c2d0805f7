"""A checkpoint's `quantization_config`, read into one checked value. Needs no torch.

Field names and their meaning: transformers' GPTQConfig and AutoRound's export (`packing_format`, `data_type`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GROUP_SIZES = (32, 64, 128)


class UnsupportedCheckpoint(ValueError):
    """A checkpoint that the kernels cannot serve; the message names the field or tensor, what it holds, what is due."""


@dataclass(frozen=True)
class Int4Spec:
    """A symmetric 4-bit checkpoint: w = scale * (nibble - 8).

    `method` is "auto-round" or "gptq"; `zero_point` the value that a symmetric zero has on disk in this convention
    (GPTQ v1 stores it minus one: 7; v2 stores it as it is: 8).
    """

    method: str
    group_size: int
    zero_point: int


def is_int4(config: Mapping[str, Any]) -> bool:
    """Whether a quantization_config is of the AutoRound/GPTQ family at all (of any width)."""
    return str(config.get("quant_method", "")).lower().replace("_", "-") in ("auto-round", "gptq", "intel/auto-round")


def read_int4(config: Mapping[str, Any]) -> Int4Spec:
    """The checked spec. Raises UnsupportedCheckpoint naming the field that cannot be served."""
    if not is_int4(config):
        raise _refuse("quant_method", config.get("quant_method"), "auto-round or gptq")
    method = "gptq" if str(config["quant_method"]).lower() == "gptq" else "auto-round"
    bits = config.get("bits")
    if bits != 4:
        raise _refuse("bits", bits, "4")
    if config.get("sym", True) is not True:
        raise _refuse("sym", config.get("sym"), "true (an asymmetric checkpoint carries real zero points)")
    if config.get("desc_act", False):
        raise _refuse("desc_act", config["desc_act"], "false (rows in the order of the checkpoint, no g_idx)")
    data_type = str(config.get("data_type", "int"))
    if data_type != "int":
        raise _refuse("data_type", data_type, "int")
    packing = str(config.get("packing_format", "auto_round:auto_gptq"))
    if "awq" in packing:
        raise _refuse("packing_format", packing, "auto_gptq or gptq packing")
    group_size = config.get("group_size")
    if group_size not in GROUP_SIZES:
        raise _refuse("group_size", group_size, " or ".join(map(str, GROUP_SIZES)))
    return Int4Spec(method, int(group_size), zero_point(config))


def zero_point(config: Mapping[str, Any]) -> int:
    """7 for the GPTQ v1 convention, 8 for v2 (`checkpoint_format: gptq_v2`, or AutoRound's plain packing)."""
    if str(config.get("checkpoint_format", "")).lower() == "gptq_v2":
        return 8
    packing = str(config.get("packing_format", "auto_round:auto_gptq")).lower()
    return 7 if "gptq" in packing else 8


def _refuse(field: str, got: object, wanted: str) -> UnsupportedCheckpoint:
    return UnsupportedCheckpoint(f"quantization_config.{field}: got {got!r}, wanted {wanted}")
