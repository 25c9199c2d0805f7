"""`moe_u4` by backends that were asked for by name: one for M <= limit, one for more.

An operator of its own, so that the choice by M stays out of what Dynamo traces (vLLM on a CPU traces the layer once
and drops the guards: a branch in Python would be frozen at the first M).
"""

from __future__ import annotations

import torch

from xpu_moe.env import read
from xpu_moe.ops.contract import select
from xpu_moe.ops.library import define
from xpu_moe.ops.moe_u4 import case_of, check_ids


def _run(
    x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, nibble, group_size, activation, layout, decode, prefill,
    limit, workspace=None,
):  # fmt: skip
    if x.device.type == "cpu" or read.flag("XPU_MOE_CHECK"):
        check_ids(topk_ids, w13.shape[0])
    case = case_of(x, w13, w2, topk_weights, topk_ids, nibble, group_size, activation, layout)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    select(case, (decode if x.shape[0] <= limit else prefill) or None).backend.run(
        x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, nibble=nibble, group_size=group_size,
        activation=activation, layout=layout, out=out, workspace=workspace,
    )  # fmt: skip
    return out


define(
    "moe_u4_named(Tensor x, Tensor w13, Tensor w13_scale, Tensor w2, Tensor w2_scale, Tensor topk_weights, "
    "Tensor topk_ids, str nibble, int group_size, str activation, str layout, str decode, str prefill, int limit, "
    "Tensor(a!)? workspace=None) -> Tensor",
    lambda x, *rest, **keywords: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    _run,
)
