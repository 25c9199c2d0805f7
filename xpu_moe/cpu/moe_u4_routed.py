"""`moe_u4_routed` on the CPU: the router, then the grouped experts. Also its float64 truth."""

from __future__ import annotations

import torch

from xpu_moe.cpu.moe_u4 import GroupedByExpert
from xpu_moe.cpu.moe_u4 import reference as moe_reference
from xpu_moe.cpu.plain import Grouped
from xpu_moe.cpu.route_sigmoid_topk import route


class RoutedGroupedByExpert(Grouped):
    """`route` and `GroupedByExpert` one after the other."""

    op = "moe_u4_routed"
    _experts = GroupedByExpert()

    def run(
        self, x, w13, w13_scale, w2, w2_scale, logits, bias, top_k, *, nibble, group_size, activation, renormalize,
        scale, layout, out, workspace=None,
    ):  # fmt: skip
        weights, ids = route(logits, bias, top_k, renormalize, scale)
        return self._experts.run(
            x, w13, w13_scale, w2, w2_scale, weights, ids, nibble=nibble, group_size=group_size, activation=activation,
            layout=layout, out=out,
        )  # fmt: skip


def reference(
    x, w13, w13_scale, w2, w2_scale, logits, bias, top_k, *, nibble, group_size, activation="silu", renormalize=True,
    scale=1.0,
) -> torch.Tensor:  # fmt: skip
    """The float64 truth, [M, H], on the CPU. The choice is made in float32 (ties are ties there), its weights not."""
    logits = logits.cpu()
    _, ids = route(logits, None if bias is None else bias.cpu(), top_k, renormalize, scale)
    scores = torch.sigmoid(logits.double()).nan_to_num(0.0).gather(-1, ids.long())
    if renormalize:
        scores = scores / (scores.sum(dim=-1, keepdim=True) + 1e-20)
    return moe_reference(
        x, w13, w13_scale, w2, w2_scale, scores * scale, ids, nibble=nibble, group_size=group_size,
        activation=activation,
    )  # fmt: skip
