"""`route_sigmoid_topk` on the CPU, in float32; the operator's file states the semantics."""

from __future__ import annotations

import torch

from xpu_moe.cpu.plain import Plain
from xpu_moe.ops.contract import Case, Support
from xpu_moe.ops.route_sigmoid_topk import EPSILON


def route(logits, bias, top_k: int, renormalize: bool, scale: float, dtype=torch.float32):
    """(weights, ids) in `dtype` arithmetic: float64 gives the truth for tests."""
    logits = logits.to(dtype)
    usable = ~logits.isnan()
    scores = torch.where(usable, torch.sigmoid(logits), torch.zeros((), dtype=dtype))
    choice = scores if bias is None else scores + bias.to(dtype)
    choice = torch.where(usable & ~choice.isnan(), choice, torch.full((), -torch.inf, dtype=dtype))
    # Usable experts come before unusable ones whatever their bias (-inf included); stable sorts keep the lowest id
    # first among equals, so two of them make one sort by (usable, choice).
    by_choice = choice.argsort(dim=-1, descending=True, stable=True)
    rank = usable.gather(-1, by_choice).to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    ids = by_choice.gather(-1, rank)[:, :top_k]
    weights = scores.gather(-1, ids)
    if renormalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + EPSILON)
    return weights * scale, ids.to(torch.int32)


class SortedRows(Plain):
    """A stable sort of every row."""

    name = "cpu_sort"
    op = "route_sigmoid_topk"

    def supports(self, case: Case) -> Support:
        return Support(True, "stable sort in float32")

    def run(self, logits, bias, top_k, *, renormalize, scale):
        return route(logits, bias, top_k, renormalize, scale)
