"""The argument lists and flag bits of the kernels: what the runtime, the SIMT twins and the host emulation agree on.

Every argument is a plain USM pointer, an int32 or a float32, in the order given here. Weights, scales and activations
must be 16-byte aligned and their rows too (`x_stride % 8 == 0`); ids and route weights need their element's alignment.
"""

from __future__ import annotations

from dataclasses import dataclass

# flags (abi.hpp is the same table in C++)
S4 = 1 << 0
IDS_64 = 1 << 1
SCALE_BF16 = 1 << 2
GATED = 1 << 3
RELU2 = 1 << 4
RENORMALIZE = 1 << 5
WITH_LOGITS = 1 << 6
WITH_BIAS = 1 << 7
WEIGHTS_SHIFT, LOGITS_SHIFT, BIAS_SHIFT = 8, 10, 12
MAX_TOP_K = 16
MAX_EXPERTS = 512

KINDS = {"float32": 0, "float16": 1, "bfloat16": 2}
DTYPES = {"float16": "f16", "bfloat16": "bf16"}  # of activations; part of a kernel's name


@dataclass(frozen=True)
class Argument:
    """`kind`: "in" and "out" are pointers, "int" is int32, "float" is float32. A nullable pointer may be 0."""

    name: str
    kind: str
    nullable: bool = False


def _arguments(text: str) -> tuple[Argument, ...]:
    rows = (word.split(":") for word in text.split())
    return tuple(Argument(name, kind.rstrip("?"), kind.endswith("?")) for name, kind in rows)


# family -> arguments. A kernel's name is its family with the template instance behind it, see launch.py.
SIGNATURES = {
    # hidden[m, k, p(i)] = act(gate) * up, float32, p = `launch.hidden_position`. With `logits` (flag WITH_LOGITS, then
    # topk_ids is null) the routing is decided here and written to route_weights float32 [M, top_k] and route_ids int32
    # [M, top_k], for down to read. A `bias` needs the flag WITH_BIAS.
    "moe_u4_up": _arguments(
        "x:in w13:in w13_scale:in topk_ids:in? logits:in? bias:in? hidden:out route_weights:out? route_ids:out? "
        "tokens:int hidden_size:int intermediate_size:int num_experts:int top_k:int x_stride:int split:int flags:int "
        "route_scale:float"
    ),
    "moe_u4_down": _arguments(
        "hidden:in w2:in w2_scale:in topk_ids:in topk_weights:in out:out "
        "tokens:int hidden_size:int intermediate_size:int num_experts:int top_k:int out_stride:int split:int flags:int"
    ),
    # weights float32 [M, top_k], ids int32 [M, top_k]; logits_stride in elements
    "route_sigmoid_topk": _arguments(
        "logits:in bias:in? weights:out ids:out tokens:int num_experts:int top_k:int logits_stride:int flags:int "
        "route_scale:float"
    ),
    # sums float32 [M, 2]; qkv rows hold Q (q_size), then K (kv_size); sizes are multiples of 32, strides even
    "qk_rms_partial": _arguments("qkv:in sums:out tokens:int q_size:int kv_size:int qkv_stride:int"),
    # weights in the kind of flags' WEIGHTS bits; mean = sums / (size * world_size); q_out may be a view of qkv
    "qk_rms_apply": _arguments(
        "qkv:in sums:in q_weight:in k_weight:in q_out:out k_out:out tokens:int q_size:int kv_size:int qkv_stride:int "
        "q_out_stride:int k_out_stride:int world_size:int flags:int eps:float"
    ),
}
