"""What `quantization_config` says, in one form for every writer: bits, group, block, symmetry, bytes of a matrix."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_INTEGER = frozenset(
    {"gptq", "gptq_marlin", "auto-round", "auto_round", "autoround", "intel/auto-round", "awq", "awq_marlin", "inc",
     "compressed-tensors"}
)  # fmt: skip
_FP8 = frozenset({"fp8", "fbgemm_fp8", "mxfp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel"})
_FP4 = ("nvfp4", "mxfp4")  # within the method or the algorithm of ModelOpt, gpt-oss and others


@dataclass(frozen=True)
class Quant:
    """`group` -1 = one group a row; `block` (rows, columns) for block-scaled FP8; `bits` not told: what the method has
    always, 4 for integer methods (its writers' default, as group 128 is), else 16."""

    method: str
    bits: int
    group: int
    symmetric: bool
    order: bool
    block: tuple[int, int] | None
    number: str
    lm_head: bool

    @property
    def slice_multiple(self) -> int:
        """Columns by which a tensor-parallel slice of K must divide; 1 when any slice is fine."""
        if self.block:
            return self.block[1]
        return self.group if self.group > 0 and self.bits < 16 and self.number == "int" else 1

    def matrix_bytes(self, rows: int, columns: int, element: int) -> int:
        """Bytes of a `[rows, columns]` weight with its scales (16-bit for integer groups, fp32 for FP8 blocks)."""
        if self.bits >= 16:
            return rows * columns * element
        payload = -(-rows * columns * self.bits // 8)
        if self.block:
            return payload + -(-rows // self.block[0]) * -(-columns // self.block[1]) * 4
        if self.number != "int":
            return payload + (rows * columns // 16 if self.bits == 4 else rows * 4)
        groups = -(-columns // self.group) if self.group > 0 else 1
        zeros = 0 if self.symmetric else rows * groups * self.bits // 8
        return payload + rows * groups * 2 + zeros


def quant_of(raw: Mapping[str, Any]) -> Quant | None:
    """The quantisation of a config, None where it names no method."""
    method = _method(raw)
    if not method or len(method) > 60:
        return None
    inner: Mapping[str, Any] = next((part for _, part in weight_parts(raw)), {})
    bits = _number(inner, "bits", "num_bits", "w_bit", "weight_bits", default=_usual_bits(method, raw))
    return Quant(
        method=method,
        bits=bits,
        group=_number(inner, "group_size", "q_group_size", default=_usual_group(method, inner)),
        symmetric=_symmetric(method, inner),
        order=raw.get("desc_act") is True or inner.get("actorder") not in (None, False, "static", "weight"),
        block=pair(raw.get("weight_block_size") or inner.get("block_structure")),
        number="int" if is_integer(raw, inner) else "float",
        lm_head=raw.get("lm_head") is True,
    )


def unsized(raw: Mapping[str, Any]) -> str:
    """Why nobody can tell the bytes of a matrix from a `quantization_config`, key first; "" where it tells them."""
    method = _method(raw)
    if not method:
        return "quant_method is missing"
    if method not in _INTEGER | _FP8 and _usual_bits(method, raw) == 16:
        known = ", ".join(sorted(_INTEGER | _FP8 | {*_FP4}))
        return f"quant_method: got {json.dumps(method[:60])}, whose bytes are not known; wanted one of {known}"
    if method == "compressed-tensors" and not any(part.get("num_bits") is not None for _, part in weight_parts(raw)):
        return "config_groups tells no num_bits of weights"
    return ""


def weight_parts(raw: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(where, object) of everything that describes weights: the config itself, or each of its groups."""
    groups = raw.get("config_groups")
    if not isinstance(groups, Mapping):
        return [("", raw)]
    weights = [(name, group.get("weights")) for name, group in groups.items() if isinstance(group, Mapping)]
    return [
        (f"config_groups[{json.dumps(name)[:40]}].weights.", part)
        for name, part in weights
        if isinstance(part, Mapping)
    ]


def is_integer(raw: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Are the weights that `part` of `raw` describes whole numbers in groups?"""
    return _method(raw) in _INTEGER and str(part.get("type", part.get("data_type", "int"))) == "int"


def _method(raw: Mapping[str, Any]) -> str:
    return str(raw.get("quant_method") or raw.get("quant_algo") or "").lower()


def _usual_bits(method: str, raw: Mapping[str, Any]) -> int:
    """Bits of a method whose config does not tell them."""
    said = f"{method} {raw.get('quant_algo') or ''} {raw.get('format') or ''}".lower()
    if any(name in said for name in _FP4) or raw.get("load_in_4bit") is True:
        return 4
    if method in _FP8 or raw.get("load_in_8bit") is True or re.search(r"\bfp8", said):
        return 8
    return 4 if method in _INTEGER else 16


def _usual_group(method: str, inner: Mapping[str, Any]) -> int:
    """Writers of GPTQ, AWQ and AutoRound take 128 unless told; elsewhere one group a row."""
    told = any(name in inner for name in ("group_size", "q_group_size"))
    return 128 if method in _INTEGER and method != "compressed-tensors" and not told else -1


def _symmetric(method: str, inner: Mapping[str, Any]) -> bool:
    if method.startswith("awq"):
        return inner.get("zero_point") is False
    return inner.get("sym", inner.get("symmetric", True)) is not False


def _number(raw: Mapping[str, Any], *names: str, default: int) -> int:
    for name in names:
        value = raw.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 1 << 20 and value != 0:
            return value
    return default


def pair(value: Any) -> tuple[int, int] | None:
    """Rows and columns of a block."""
    if isinstance(value, list) and len(value) == 2 and all(type(v) is int and 0 < v < 1 << 20 for v in value):
        return value[0], value[1]
    return None
