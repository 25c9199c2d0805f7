"""Shapes that a MiniMax-M2 checkpoint's tensors must have by its config.json. Needs neither torch nor vLLM.

Layouts: transformers' matrices are [out, in]; GPTQ and AutoRound pack eight 4-bit rows into an int32, `qweight`
[in/8, out], `scales` [in/group, out], `qzeros` [in/group, out/8]; block FP8 has `weight_scale_inv` [out/128, in/128].
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from xpu_moe.formats.claims import MODEL_TYPES, experts_of_layer
from xpu_moe.formats.quantization import UnsupportedCheckpoint, read_int4

Shape = tuple[int, ...]
_NAME = re.compile(
    r"(?:model\.)?(?:layers\.(?P<layer>\d+)\.)?"
    r"(?P<module>embed_tokens|lm_head|self_attn\.[qkvo]_proj|block_sparse_moe\.(?:gate|experts\.(?P<expert>\d+)\.w[123]))"
    r"\.(?P<part>weight|qweight|qzeros|scales|weight_scale_inv)\Z"
)
_PACKED = 8  # 4-bit values of an int32
_SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_local_experts", "vocab_size",
)  # fmt: skip


def unlike(
    config: Mapping[str, Any], quantization: Mapping[str, Any], tensors: Mapping[str, tuple[Shape, str]]
) -> Iterator[str]:
    """A sentence for each tensor (name -> shape, shard) that config.json means otherwise, or has no place for.

    Silent for another model, for sizes that are no numbers, and for what it does not know (norms, biases).
    """
    if config.get("model_type") not in MODEL_TYPES or not all(_is_size(config.get(name)) for name in _SIZES):
        return
    layers, experts = config["num_hidden_layers"], config["num_local_experts"]
    mtp = config.get("num_mtp_modules") or 0
    matrices = _matrices(config)
    stored = _Stored(quantization, experts)
    for name, (shape, shard) in tensors.items():
        found = _NAME.match(name)
        if found is None or not shape:
            continue
        layer, expert = (None if found[part] is None else int(found[part]) for part in ("layer", "expert"))
        if layer is not None and layer >= layers:
            if not (_is_size(mtp) and layer < layers + mtp):
                yield f"{name} (in {shard}): config.json has {layers} layers"
            continue
        if expert is not None and expert >= experts:
            yield f"{name} (in {shard}): config.json has {experts} experts"
            continue
        kind = re.sub(r"experts\.\d+", "experts", found["module"])
        wrong = stored.wrong(shape, found["part"], matrices[kind], layer if expert is not None else None)
        if wrong:
            yield f"{name} (in {shard}): {wrong}"


def _matrices(config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Module -> (out, in)."""
    hidden, inner, heads = (config[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads"))
    head = config.get("head_dim") or hidden // heads
    keys = (config.get("num_key_value_heads") or heads) * head
    return {
        "embed_tokens": (config["vocab_size"], hidden), "lm_head": (config["vocab_size"], hidden),
        "self_attn.q_proj": (heads * head, hidden), "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, heads * head),
        "block_sparse_moe.gate": (config["num_local_experts"], hidden),
        "block_sparse_moe.experts.w1": (inner, hidden), "block_sparse_moe.experts.w3": (inner, hidden),
        "block_sparse_moe.experts.w2": (hidden, inner),
    }  # fmt: skip


class _Stored:
    """How the parts of a matrix are stored by the quantisation; of experts with their layer's overrides."""

    def __init__(self, quantization: Mapping[str, Any], experts: int) -> None:
        self._experts = lru_cache(maxsize=None)(lambda layer: self._group(layer, quantization, experts))
        self._refused = not _is_read(quantization)
        block = quantization.get("weight_block_size")
        self._block = tuple(block) if isinstance(block, list) and len(block) == 2 and all(map(_is_size, block)) else ()

    def wrong(self, shape: Shape, part: str, matrix: tuple[int, int], layer: int | None) -> str:
        """What is wrong with a part of this shape, "" where nothing is or nothing is known. `layer` of experts."""
        rows, columns = matrix
        if part == "weight_scale_inv":
            wanted = (-(-rows // self._block[0]), -(-columns // self._block[1])) if self._block else shape
        elif layer is not None:
            return self._wrong_expert(shape, part, matrix, self._experts(layer))
        elif part == "weight":
            wanted = (rows, columns)
        elif part == "qweight" and not self._refused:  # an override may give a linear another width
            fits = len(shape) == 2 and shape[1] == rows and shape[0] * 32 in [columns * bits for bits in (2, 3, 4, 8)]
            wanted = shape if fits else (columns // _PACKED, rows)
        else:
            wanted = shape
        return _unequal(shape, wanted)

    def _wrong_expert(self, shape: Shape, part: str, matrix: tuple[int, int], group: int | None) -> str:
        """`group`: 0 plain experts, None not known."""
        rows, columns = matrix
        if part == "weight":
            return _unequal(shape, matrix) if not group else "a plain matrix, of experts that are packed by config.json"
        if group is None:
            return ""
        if group == 0:
            return "packed, of experts that quantization_config leaves in 16 bits"
        if part == "qweight":
            return _unequal(shape, (columns // _PACKED, rows))
        return _unequal(shape, (columns // group, rows // _PACKED if part == "qzeros" else rows))

    def _group(self, layer: int, quantization: Mapping[str, Any], experts: int) -> int | None:
        """The group of the layer's experts, 0 where they are plain, None where the quantisation is refused."""
        if self._refused:
            return None
        try:
            spec = experts_of_layer(quantization, layer, experts).spec
        except UnsupportedCheckpoint:  # of one layer, else of all: another rule speaks of it
            self._refused = True
            return None
        return spec.group_size if spec else 0


def _is_read(quantization: Mapping[str, Any]) -> bool:
    """Is it 4 bits in the packing that we read?"""
    try:
        return bool(read_int4(quantization))
    except UnsupportedCheckpoint:
        return False


def _unequal(got: Shape, wanted: Shape) -> str:
    return "" if got == wanted else f"got {list(got)}, wanted {list(wanted)}"


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31
