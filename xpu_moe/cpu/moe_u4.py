"""`moe_u4` on the CPU: routes grouped by expert, one dequantisation and two matrix products an expert.

Float32 whatever the activations are (bf16 and fp16 products round more than the contract allows). The float64 truth
that tests compare with is `reference`, which computes one route at a time and shares no code with it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from xpu_moe.cpu.plain import Grouped
from xpu_moe.ops.activation import is_gated

# byte -> its two float32 values (low nibble first), one table per nibble kind. A pair is looked up as one 8-byte item:
# three times as fast as rows of two, and what this file's time is made of.
_BYTES = torch.arange(256, dtype=torch.uint8)
_NIBBLES = torch.stack((_BYTES & 15, _BYTES >> 4), dim=1).to(torch.float32)
_VALUES = {"u4": _NIBBLES - 8, "s4": torch.where(_NIBBLES >= 8, _NIBBLES - 16, _NIBBLES)}
_PAIRS = {nibble: values.contiguous().view(torch.float64).view(256) for nibble, values in _VALUES.items()}


def dequantize(packed: torch.Tensor, scale: torch.Tensor, nibble: str) -> torch.Tensor:
    """uint8 [N, K/2] and scales [N, K/group] -> float32 [N, K]."""
    rows, half = packed.shape
    groups = scale.shape[1]
    pairs = torch.index_select(_PAIRS[nibble], 0, packed.reshape(-1).int())
    values = pairs.view(torch.float32).view(rows, groups, 2 * half // groups)
    return values.mul_(scale.float().unsqueeze(-1)).view(rows, 2 * half)


def activate(hidden: torch.Tensor, activation: str) -> torch.Tensor:
    """[N, 2I] (or [N, I] where not gated) -> [N, I]."""
    function = F.silu if activation.startswith("silu") else lambda value: F.relu(value).square()
    if not is_gated(activation):
        return function(hidden)
    gate, up = hidden.chunk(2, dim=-1)
    return function(gate) * up


class GroupedByExpert(Grouped):
    """Every M; the library's matrix product does the work."""

    op = "moe_u4"

    def run(
        self, x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, nibble, group_size, activation, layout, out,
        workspace=None,
    ):  # fmt: skip
        order = topk_ids.reshape(-1).argsort(stable=True)
        experts, counts = topk_ids.reshape(-1)[order].unique_consecutive(return_counts=True)
        tokens, weights = order // topk_ids.shape[1], topk_weights.reshape(-1)[order].float().unsqueeze(1)
        total = torch.zeros(x.shape, dtype=torch.float32)
        start = 0
        for expert, count in zip(experts.tolist(), counts.tolist()):
            rows = tokens[start : start + count]
            up = dequantize(w13[expert], w13_scale[expert], nibble)
            hidden = activate(x[rows].float() @ up.T, activation)
            down = dequantize(w2[expert], w2_scale[expert], nibble)
            total.index_add_(0, rows, (hidden @ down.T) * weights[start : start + count])
            start += count
        return out.copy_(total)


def reference(
    x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, nibble, group_size, activation="silu"
) -> torch.Tensor:
    """The float64 truth, [M, H], on the CPU: one route at a time. A route out of range contributes 0."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    ids = topk_ids.cpu()
    for token, slot in ((m, k) for m in range(ids.shape[0]) for k in range(ids.shape[1])):
        expert = int(ids[token, slot])
        if not 0 <= expert < w13.shape[0]:
            continue
        up = _float64(w13[expert], w13_scale[expert], nibble, group_size) @ x[token].cpu().double()
        if is_gated(activation):
            gate, up = up[: len(up) // 2], up[len(up) // 2 :]
        else:
            gate, up = up, torch.ones_like(up)
        hidden = (gate * torch.sigmoid(gate) if activation.startswith("silu") else gate.clamp(min=0) ** 2) * up
        down = _float64(w2[expert], w2_scale[expert], nibble, group_size)
        out[token] += float(topk_weights[token, slot]) * (down @ hidden)
    return out


def _float64(packed: torch.Tensor, scale: torch.Tensor, nibble: str, group_size: int) -> torch.Tensor:
    codes = packed.cpu().to(torch.int16)
    values = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    values = values - 8 if nibble == "u4" else (values ^ 8) - 8
    return values.double() * scale.cpu().double().repeat_interleave(group_size, dim=-1)
