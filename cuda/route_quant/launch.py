"""Host half of route_quant.cu: which build of the kernel a call takes, its grid, and the launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from xpu_moe.cuda.compiler import Program, program
from xpu_moe.cuda.route_quant import tuning
from xpu_moe.ops.route_and_quant_fp8 import Options, Routed, empty

if TYPE_CHECKING:
    from xpu_moe.cuda.jit import Launch

SIGNATURE = "PPPPPPPiiqqqqqf"
WARPS = 4  # of a block, as in the kernel
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MAX_EXPERTS, MAX_TOP_K = 512, 32


@cache
def build(
    experts: int,
    hidden: int,
    x_type: int,
    logits_type: int,
    bias_type: int,
    options: Options,
    unroll: int,
    vector: bool,
    logits_vector: bool,
) -> Program:
    """The translation unit of one build."""
    per_lane = max(1, 1 << (-(-experts // 32) - 1).bit_length())
    defines = {
        "EXPERTS": experts, "TOP_K": options.top_k, "PER_LANE": per_lane, "HIDDEN": hidden,
        "PADDED": options.padded(hidden), "GROUP": options.group_size, "UNROLL": unroll, "X_TYPE": x_type,
        "LOGITS_TYPE": logits_type, "BIAS_TYPE": bias_type, "RENORMALIZE": int(options.renormalize),
        "UE8M0": int(options.scale_ue8m0), "VECTOR": int(vector), "LOGITS_VECTOR": int(logits_vector),
    }  # fmt: skip
    return program(Path(__file__).with_name("route_quant.cu"), defines)


def vector_shapes(hidden: int, x_stride: int, x_itemsize: int, options: Options) -> bool:
    """Whether every run of 8 values is whole and aligned, given aligned base pointers."""
    return hidden % 8 == 0 and options.padded(hidden) % 8 == 0 and x_stride * x_itemsize % 16 == 0


def vector_logits(logits: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether a lane may read its experts 16 bytes at a time, given aligned base pointers."""
    experts = logits.shape[1]
    whole = experts % 128 == 0 and experts // 32 & (experts // 32 - 1) == 0
    floats = logits.dtype == torch.float32 and (bias is None or bias.dtype == torch.float32)
    return whole and floats and logits.stride(0) % 4 == 0


def grid(tokens: int, groups: int, group_size: int, unroll: int, parts: str = "both") -> tuple[int, int]:
    """(blocks that route, blocks that quantise)."""
    route_blocks = -(-tokens // WARPS) if parts != "quant" else 0
    per_block = WARPS * unroll * (32 // (group_size // 16))
    return route_blocks, -(-tokens * groups // per_block) if parts != "route" else 0


def runner(
    x: torch.Tensor,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    options: Options,
    *,
    parts: str = "both",
    choice: tuning.Choice | None = None,
) -> Callable[..., Routed]:
    """A callable for calls of these shapes, dtypes and strides: (x, logits, bias, out or None) -> Routed.

    `parts` is both | route | quant (the two halves as launches of their own, for comparison); `choice` replaces the
    tuning table's.
    """
    from xpu_moe.cuda import jit

    tokens, hidden = x.shape
    experts, device = logits.shape[1], x.device.index
    if tokens == 0:
        return lambda x, logits, bias, out=None: out or empty(x, options)
    chosen = choice or tuning.choice(tokens)
    route_blocks, quant_blocks = grid(tokens, options.groups(hidden), options.group_size, chosen.unroll, parts)
    blocks = (route_blocks + quant_blocks,)
    shapes_allow = vector_shapes(hidden, x.stride(0), x.element_size(), options)
    logits_allow = vector_logits(logits, bias)
    types = (TYPES[x.dtype], TYPES[logits.dtype], -1 if bias is None else TYPES[bias.dtype])
    x_stride, logits_stride, scale = x.stride(0), logits.stride(0), options.scale
    launches: dict[tuple[bool, bool], Launch] = {}

    def launch_for(vector: bool, logits_vector: bool) -> Launch:
        unit = build(experts, hidden, *types, options, chosen.unroll, vector, logits_vector)
        kernel = jit.load(unit, "route_quant", SIGNATURE, device)
        found = kernel.bind(blocks, (32 * WARPS,), programmatic=chosen.programmatic)
        launches[vector, logits_vector] = found
        return found

    raw_stream, current = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice

    def run(x: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor | None, out: Routed | None = None) -> Routed:
        if current() != device:
            with torch.cuda.device(device):
                return run(x, logits, bias, out)
        if out is None:
            out = empty(x, options)
        weights, ids, codes, scales = out
        x_at, codes_at, q_stride = x.data_ptr(), codes.data_ptr(), codes.stride(0)
        logits_at, bias_at = logits.data_ptr(), 0 if bias is None else bias.data_ptr()
        vector = shapes_allow and not (x_at | codes_at << 1) & 15 and not q_stride & 7
        pair = (vector, logits_allow and not (logits_at | bias_at) & 15)
        (launches.get(pair) or launch_for(*pair))(
            raw_stream(device), x_at, logits_at, bias_at, weights.data_ptr(), ids.data_ptr(), codes_at,
            scales.data_ptr(), tokens, route_blocks, x_stride, logits_stride, q_stride, scales.stride(0),
            scales.stride(1), scale,
        )  # fmt: skip
        return out

    return run


def route(logits: torch.Tensor, bias: torch.Tensor | None, options: Options) -> tuple[torch.Tensor, torch.Tensor]:
    """The routing blocks alone: (weights float32 [M, top_k], ids int32 [M, top_k])."""
    from xpu_moe.cuda import jit

    tokens, experts = logits.shape
    weights = torch.empty((tokens, options.top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((tokens, options.top_k), dtype=torch.int32, device=logits.device)
    if tokens == 0:
        return weights, ids
    if logits.stride(1) != 1 and experts > 1:
        logits = logits.contiguous()
    types = (1, TYPES[logits.dtype], -1 if bias is None else TYPES[bias.dtype])
    bias_at = 0 if bias is None else bias.data_ptr()
    logits_vector = vector_logits(logits, bias) and not (logits.data_ptr() | bias_at) & 15
    unit = build(experts, options.group_size, *types, options, 1, True, logits_vector)
    with torch.cuda.device(logits.device):
        jit.load(unit, "route_quant", SIGNATURE, logits.device.index).launch(
            (-(-tokens // WARPS),), (32 * WARPS,), 0, logits.data_ptr(), bias_at,
            weights.data_ptr(), ids.data_ptr(), 0, 0, tokens, 1 << 30, 0, logits.stride(0), 0, 0, 0, options.scale,
            stream=jit.stream(logits.device.index), programmatic=tuning.choice(tokens).programmatic,
        )  # fmt: skip
    return weights, ids
