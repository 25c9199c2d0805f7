"""Host half of route_quant.cu: which build of the kernel a call takes, its grid, and the launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from xpu_moe.cuda.compiler import INSTRUCTIONS, Program, program
from xpu_moe.cuda.route_quant import tuning
from xpu_moe.ops.route_and_quant_fp8 import Options, Routed, empty

SIGNATURE = "PPPPPPPiiiqqqqqf"
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
    warps: int = 4,
) -> Program:
    """The translation unit of one build."""
    per_lane = max(1, 1 << (-(-experts // 32) - 1).bit_length())
    defines = {
        "EXPERTS": experts, "TOP_K": options.top_k, "PER_LANE": per_lane, "HIDDEN": hidden,
        "PADDED": options.padded(hidden), "GROUP": options.group_size, "UNROLL": unroll, "WARPS": warps,
        "X_TYPE": x_type, "LOGITS_TYPE": logits_type, "BIAS_TYPE": bias_type, "RENORMALIZE": int(options.renormalize),
        "UE8M0": int(options.scale_ue8m0), "VECTOR": int(vector), "LOGITS_VECTOR": int(logits_vector),
    }  # fmt: skip
    return program(Path(__file__).with_name("route_quant.cu"), defines, headers=(INSTRUCTIONS,))


def vector_shapes(hidden: int, x_stride: int, x_itemsize: int, options: Options) -> bool:
    """Whether every run of 8 values is whole and aligned, given aligned base pointers."""
    return hidden % 8 == 0 and options.padded(hidden) % 8 == 0 and x_stride * x_itemsize % 16 == 0


def vector_logits(logits: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether a lane may read its experts 16 bytes at a time, given aligned base pointers."""
    experts = logits.shape[1]
    whole = experts % 128 == 0 and experts // 32 & (experts // 32 - 1) == 0
    floats = logits.dtype == torch.float32 and (bias is None or bias.dtype == torch.float32)
    return whole and floats and logits.stride(0) % 4 == 0


def grid(
    tokens: int, groups: int, group_size: int, unroll: int, parts: str = "both", warps: int = 4
) -> tuple[int, int]:
    """(blocks that route, blocks that quantise)."""
    route_blocks = -(-tokens // warps) if parts != "quant" else 0
    per_block = warps * unroll * (32 // (group_size // 16))
    return route_blocks, -(-tokens * groups // per_block) if parts != "route" else 0


def fitting(spread: int, route_blocks: int, quant_blocks: int) -> int:
    """The largest spread up to `spread` with which every routing block still has a place in the grid."""
    while spread and (route_blocks - 1) << spread >= route_blocks + quant_blocks:
        spread -= 1
    return spread


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
    route_blocks, quant_blocks = grid(
        tokens, options.groups(hidden), options.group_size, chosen.unroll, parts, chosen.warps
    )
    blocks, spread = (route_blocks + quant_blocks,), fitting(chosen.spread, route_blocks, quant_blocks)
    shapes_allow = vector_shapes(hidden, x.stride(0), x.element_size(), options)
    logits_allow = vector_logits(logits, bias)
    types = (TYPES[x.dtype], TYPES[logits.dtype], -1 if bias is None else TYPES[bias.dtype])
    x_stride, logits_stride = x.stride(0), logits.stride(0)
    calls: dict[tuple[bool, bool, tuple], Callable[..., None]] = {}

    def call_for(key: tuple[bool, bool, tuple]) -> Callable[..., None]:
        vector, logits_vector, strides = key
        unit = build(experts, hidden, *types, options, chosen.unroll, vector, logits_vector, chosen.warps)
        kernel = jit.load(unit, "route_quant", SIGNATURE, device)
        launch = kernel.bind(blocks, (32 * chosen.warps,), programmatic=chosen.programmatic)
        rest = (x_stride, logits_stride, *strides, options.scale)
        found = calls[key] = launch.fixed(0, 7, *(0,) * 7, tokens, route_blocks, spread, *rest)
        return found

    raw_stream, current = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice

    # The last outputs, their addresses and strides, and the call for them when all inputs are aligned.
    kept: tuple[Routed | None, tuple, tuple, Callable[..., None] | None] = (None, (), (), None)

    def remember(out: Routed) -> tuple[Routed, tuple, tuple, Callable[..., None]]:
        nonlocal kept
        addresses = tuple(tensor.data_ptr() for tensor in out)
        strides = (out.x_q.stride(0), *out.x_scale.stride())
        found = (out, addresses, strides, call_of(0, 0, addresses, strides))
        kept = found
        return found

    def call_of(x_at: int, logits_at: int, addresses: tuple, strides: tuple) -> Callable[..., None]:
        vector = shapes_allow and not (x_at | addresses[2] << 1) & 15 and not strides[0] & 7
        key = (vector, logits_allow and not logits_at & 15, strides)
        return calls.get(key) or call_for(key)

    def run(x: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor | None, out: Routed | None = None) -> Routed:
        if current() != device:
            with torch.cuda.device(device):
                return run(x, logits, bias, out)
        if out is None:
            out = empty(x, options)
        known, addresses, strides, call = kept
        if out is not known or call is None:
            known, addresses, strides, call = remember(out)
        x_at, logits_at, bias_at = x.data_ptr(), logits.data_ptr(), 0 if bias is None else bias.data_ptr()
        if (x_at | logits_at | bias_at) & 15:
            call = call_of(x_at, logits_at | bias_at, addresses, strides)
        call(raw_stream(device), x_at, logits_at, bias_at, *addresses)
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
    warps = tuning.choice(tokens).warps
    unit = build(experts, options.group_size, *types, options, 1, True, logits_vector, warps)
    blocks = -(-tokens // warps)
    with torch.cuda.device(logits.device):
        jit.load(unit, "route_quant", SIGNATURE, logits.device.index).launch(
            (blocks,), (32 * warps,), 0, logits.data_ptr(), bias_at,
            weights.data_ptr(), ids.data_ptr(), 0, 0, tokens, blocks, 0, 0, logits.stride(0), 0, 0, 0, options.scale,
            stream=jit.stream(logits.device.index), programmatic=tuning.choice(tokens).programmatic,
        )  # fmt: skip
    return weights, ids
