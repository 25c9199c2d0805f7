"""`moe_fp8_block` on the CPU in float32, and its float64 truth (`reference`), one route at a time."""

from __future__ import annotations

import torch

from xpu_moe.cpu.moe_u4 import activate
from xpu_moe.cpu.plain import Grouped
from xpu_moe.ops.activation import is_gated

BLOCK = 128


def dequantize(weights: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """e4m3 [N, K] and scales [N/128, K/128] -> [N, K] of `dtype`. A scale of 0 or near it gives 0, never NaN."""
    wide = scale.to(dtype).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return weights.to(torch.float32).to(dtype) * wide


def plain(x: torch.Tensor, x_scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """x as [M, H] of `dtype`, dequantised where it carries scales."""
    if x_scale is None:
        return x.to(dtype)
    return x.to(torch.float32).to(dtype) * x_scale.to(dtype).repeat_interleave(BLOCK, 1)


class BlockScaled(Grouped):
    """One dequantised expert at a time."""

    op = "moe_fp8_block"

    def run(
        self, x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, activation, layout, out,
        workspace=None,
    ):  # fmt: skip
        values = plain(x, x_scale, torch.float32)
        total = torch.zeros(values.shape, dtype=torch.float32)
        for expert in topk_ids.unique().tolist():
            token, slot = (topk_ids == expert).nonzero(as_tuple=True)
            hidden = activate(values[token] @ dequantize(w13[expert], w13_scale[expert], torch.float32).T, activation)
            down = hidden @ dequantize(w2[expert], w2_scale[expert], torch.float32).T
            total.index_add_(0, token, down * topk_weights[token, slot].float().unsqueeze(1))
        return out.copy_(total)


def reference(x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, activation="silu") -> torch.Tensor:
    """The float64 truth, [M, H]. A route out of range contributes 0."""
    values = plain(x, x_scale, torch.float64)
    out = torch.zeros(values.shape, dtype=torch.float64)
    for token, slot in ((m, k) for m in range(topk_ids.shape[0]) for k in range(topk_ids.shape[1])):
        expert = int(topk_ids[token, slot])
        if not 0 <= expert < w13.shape[0]:
            continue
        gate = dequantize(w13[expert], w13_scale[expert], torch.float64) @ values[token]
        up = torch.ones_like(gate)
        if is_gated(activation):
            gate, up = gate[: len(gate) // 2], gate[len(gate) // 2 :]
        hidden = (gate * torch.sigmoid(gate) if activation.startswith("silu") else gate.clamp(min=0) ** 2) * up
        down = dequantize(w2[expert], w2_scale[expert], torch.float64)
        out[token] += float(topk_weights[token, slot]) * (down @ hidden)
    return out
