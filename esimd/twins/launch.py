"""Launch shapes of the SIMT twins: the functions of kernels/launch.py, with the twins' names and geometry. No torch."""

from __future__ import annotations

import math

from xpu_moe.esimd.kernels import abi
from xpu_moe.esimd.kernels.launch import RMS_BLOCK, Launch

LANES = 16
SUB_GROUPS = 4  # in one work-group of up and down: neighbouring rows, which share x in the cache


def up(
    dtype: str, tokens: int, hidden_size: int, intermediate_size: int, top_k: int, group_size: int, gated: bool = True
) -> Launch:
    """`moe_u4_up`: one sub-group a (token, route, column)."""
    groups = (tokens, top_k, math.ceil(intermediate_size / SUB_GROUPS))
    return Launch(f"moe_u4_up_{abi.DTYPES[dtype]}_g{group_size}", "moe_u4", groups, (1, 1, LANES * SUB_GROUPS))


def down(dtype: str, tokens: int, hidden_size: int, intermediate_size: int, top_k: int, group_size: int) -> Launch:
    """`moe_u4_down`: one sub-group a (token, output row)."""
    groups = (1, tokens, math.ceil(hidden_size / SUB_GROUPS))
    return Launch(f"moe_u4_down_{abi.DTYPES[dtype]}_g{group_size}", "moe_u4", groups, (1, 1, LANES * SUB_GROUPS))


def route(tokens: int) -> Launch:
    """`route_sigmoid_topk`: one sub-group a token."""
    return Launch("route_sigmoid_topk", "route_sigmoid_topk", (1, 1, tokens), (1, 1, LANES))


def qk_partial(dtype: str, tokens: int) -> Launch:
    """`qk_rms_partial`: one sub-group for a row's Q, one for its K."""
    return Launch(f"qk_rms_partial_{abi.DTYPES[dtype]}", "qk_rms", (1, tokens, 2), (1, 1, LANES))


def qk_apply(dtype: str, tokens: int, q_size: int, kv_size: int) -> Launch:
    """`qk_rms_apply`: one sub-group for 128 elements of Q, then of K."""
    blocks = math.ceil(q_size / RMS_BLOCK) + math.ceil(kv_size / RMS_BLOCK)
    return Launch(f"qk_rms_apply_{abi.DTYPES[dtype]}", "qk_rms", (1, tokens, blocks), (1, 1, LANES))
