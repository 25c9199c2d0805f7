"""Weight bytes of one rank: from the shards' headers where weights are there, else from config.json's shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from xpu_moe.plan.checkpoint import Checkpoint, Tensor
from xpu_moe.plan.shapes import Parts, Shapes

# (part, pattern, shared by all ranks). The first that fits.
_PARTS: tuple[tuple[str, re.Pattern[str], bool], ...] = (
    ("experts", re.compile(r"\.experts\.\d+\."), False),
    ("router", re.compile(r"\.(?:gate|router)\.|e_score_correction_bias"), True),
    ("norms", re.compile(r"(?:q_norm|k_norm)\."), False),
    ("norms", re.compile(r"norm\d*\."), True),
    ("lm_head", re.compile(r"(?:^|\.)lm_head\."), False),
    ("embedding", re.compile(r"embed_tokens|wte|word_embeddings"), False),
    ("attention", re.compile(r"(?:kv_a_proj|q_a_proj|kv_a_layernorm)"), True),
    ("attention", re.compile(r"attn|attention"), False),
    ("dense_mlp", re.compile(r"mlp|feed_forward|shared_expert"), False),
)
_EXPERT = re.compile(r"\.layers\.(\d+)\..*\.experts\.(\d+)\.")
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_DROPPED = re.compile(r"\.(?:qzeros|g_idx|weight_zero_point|weight_shape)$")
_PACKED = re.compile(r"\.(?:qweight|weight_packed|weight_scale(?:_inv)?|scales|absmax)$")
_KV = re.compile(r"\.(?:k_proj|v_proj)\.")
_UNTOLD = (
    "no index tells the bytes of all weights (total_size): they are taken as whole for their layers, their experts and "
    "half of the bytes that config.json means"
)


@dataclass(frozen=True)
class Weights:
    """`source`: headers or config. `doubt` says why headers that could be read are not believed, `caveat` by what
    little they are."""

    parts: Parts
    source: str
    doubt: str = ""
    caveat: str = ""


def weights(checkpoint: Checkpoint, shapes: Shapes, tp: int, pp: int = 1, expert_parallel: bool = False) -> Weights:
    """Bytes of the rank that holds most. Headers count only when every tensor's size is known and they are whole."""
    known = bool(checkpoint.tensors) and not checkpoint.shards_missing and checkpoint.problem is None
    doubt = incomplete(checkpoint.tensors, shapes, checkpoint.total) if known else ""
    if known and not doubt and pp == 1:
        several = len({tensor.shard for tensor in checkpoint.tensors.values()}) > 1
        caveat = _UNTOLD if several and checkpoint.total is None else ""
        return Weights(from_headers(checkpoint.tensors, shapes, tp), "headers", caveat=caveat)
    return Weights(shapes.weights_per_rank(tp, pp, expert_parallel), "config", doubt)


def incomplete(tensors: Mapping[str, Tensor], shapes: Shapes, total: int | None = None) -> str:
    """Why these tensors cannot be the whole model of config.json; "" where they can.

    `total` is what the index says that they take together: exact. Where it says nothing, half of the bytes that
    config.json means is the bound: writers differ by a few percent, a lost shard may be small, but then a layer or an
    expert is missing as well. Packed weights that config.json does not tell of have no such bound.
    """
    lost = [name for name, tensor in tensors.items() if tensor.bytes is None]
    if lost:
        return f"no file holds {len(lost)} tensors of the index, the first {lost[0]}"
    layers = {int(found.group(1)) for name in tensors if (found := _LAYER.search(name))}
    have = sum(layer < shapes.layers for layer in layers)
    if layers and have < shapes.layers:
        return f"the weights hold {have} of {shapes.layers} layers"
    there = sum(tensor.bytes or 0 for tensor in tensors.values())
    if total is not None and there < total:
        return f"the weights are {there:,} of the {total:,} bytes that the index tells (total_size)"
    if says := _experts_lost(tensors, shapes):
        return says
    if total is not None and layers:
        return ""
    told = shapes.quant is not None and shapes.quant.bits < 16
    if not told and any(_PACKED.search(name) for name in tensors):
        return ""
    meant = shapes.weights_per_rank(1).total
    if 2 * there >= meant:
        return ""
    return f"the weights are {_size(there)}, config.json means {_size(meant)}"


def _experts_lost(tensors: Mapping[str, Tensor], shapes: Shapes) -> str:
    """Where experts have names of their own, a layer that has some must have all."""
    experts: dict[int, set[int]] = {}
    for name in tensors:
        if found := _EXPERT.search(name):
            experts.setdefault(int(found.group(1)), set()).add(int(found.group(2)))
    for layer, held in sorted(experts.items()):
        if layer < shapes.layers and len(held) < shapes.num_experts:
            return f"the weights hold {len(held)} of {shapes.num_experts} experts of layer {layer}"
    return ""


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1 << 20 else f"{count / 2**30:.2f} GiB"


def from_headers(tensors: Mapping[str, Tensor], shapes: Shapes, tp: int) -> Parts:
    """Sum the declared tensors by part, each divided by tp where it is sharded.

    Zero points of symmetric checkpoints and group indices are not kept on a card; layers beyond the model's own (draft
    layers) are skipped by the engine; the router is kept in its loading type.
    """
    sums = dict.fromkeys(("experts", "attention", "dense_mlp", "router", "embedding", "lm_head", "norms"), 0)
    symmetric = shapes.quant is None or shapes.quant.symmetric
    for name, tensor in tensors.items():
        layer = _LAYER.search(name)
        if (layer and int(layer.group(1)) >= shapes.layers) or (symmetric and _DROPPED.search(name)):
            continue
        part, shared = _part(name)
        count = tensor.bytes or 0
        if part == "router" and tensor.dtype in ("BF16", "F16") and shapes.router_element == 4:
            count *= 2
        if not shared:
            count = -(-count // (min(tp, shapes.kv_heads) if _KV.search(name) else tp))
        sums[part] += count
    return Parts(**sums)


def _part(name: str) -> tuple[str, bool]:
    for part, pattern, shared in _PARTS:
        if pattern.search(name):
            return part, shared
    return "norms", True
