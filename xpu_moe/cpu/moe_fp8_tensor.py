"""`moe_fp8_tensor` on the CPU, in float32: x as it comes (the static activation scales are not applied)."""

from __future__ import annotations

import torch

from xpu_moe.cpu.moe_u4 import activate
from xpu_moe.cpu.plain import Grouped


def grouped(x, weights, topk_weights, topk_ids, dtype: torch.dtype) -> torch.Tensor:
    """[M, H] in `dtype`: float64 gives the truth for tests. Routes out of range contribute 0."""
    total = torch.zeros(x.shape, dtype=dtype)
    for expert in topk_ids.unique().tolist():
        if not 0 <= expert < weights.w2.shape[0]:
            continue
        token, slot = (topk_ids == expert).nonzero(as_tuple=True)
        w13 = weights.w13[expert].float().to(dtype) * weights.w13_scale[expert].to(dtype)
        w2 = weights.w2[expert].float().to(dtype) * weights.w2_scale[expert].to(dtype)
        hidden = activate(x[token].to(dtype) @ w13.T, weights.activation)
        total.index_add_(0, token, (hidden @ w2.T) * topk_weights[token, slot].to(dtype).unsqueeze(1))
    return total


class TensorScaled(Grouped):
    """One dequantised expert at a time."""

    op = "moe_fp8_tensor"

    def run(self, x, weights, topk_weights, topk_ids, *, out, workspace=None):
        return out.copy_(grouped(x, weights, topk_weights, topk_ids, torch.float32))
