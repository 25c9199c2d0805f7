"""Checks that are remembered: a call of shapes that fitted is not asked again, every other one is."""

from __future__ import annotations

import pytest
import torch

from tests.ops.table import MoeCase, moe_inputs
from xpu_moe import ops
from xpu_moe.ops import checks

CASE = MoeCase(tokens=3, experts=4, top_k=2, hidden=64, inter=32, group=32)


def call(given: dict, **changes) -> torch.Tensor:
    names = ("x", "w13", "w13_scale", "w2", "w2_scale", "topk_weights", "topk_ids")
    merged = {**given, **changes}
    return ops.moe_u4(*(merged[name] for name in names), nibble=merged.get("nibble", "u4"), group_size=32)


def test_what_fitted_once_does_not_excuse_what_does_not_fit():
    given = moe_inputs(CASE, torch.float32)
    first = call(given)
    assert torch.equal(call(given), first)
    for changes in (
        {"x": given["x"].to(torch.float64)}, {"x": given["x"][:2]}, {"w2_scale": given["w2_scale"][:, :, :0]},
        {"topk_ids": given["topk_ids"].to(torch.int16)}, {"nibble": "u5"},
    ):  # fmt: skip
        with pytest.raises(checks.BadArgument):
            call(given, **changes)
    with pytest.raises(checks.BadArgument, match="topk_ids"):
        call(given, topk_ids=given["topk_ids"].fill_(99))  # values are asked at every call on a CPU


def test_the_list_of_shapes_is_bounded(monkeypatch):
    fitted = checks.Fitted()
    monkeypatch.setattr(checks.Fitted, "_MOST", 3)
    calls = [(torch.zeros(size),) for size in range(1, 6)]
    for tensors in calls:
        fitted.add(tensors, "silu")
        assert fitted.knows(tensors, "silu") and not fitted.knows(tensors, "relu2")
    assert not fitted.knows(calls[0], "silu")


def test_what_is_never_taken_as_known():
    fitted, watched = checks.Fitted(), torch.zeros(2, requires_grad=True)
    for tensors in ((watched,), (torch.zeros(2), watched)):
        with torch.no_grad():
            fitted.add(tensors, "silu")
            assert fitted.knows(tensors, "silu")
        assert not fitted.knows(tensors, "silu")
    assert not fitted.knows((torch.zeros(2), [1.0]), "silu")
    assert not fitted.knows((torch.zeros(2),), ["silu"])
    assert not fitted.knows((torch.nn.Parameter(torch.zeros(2)),), "silu")


def test_memory_of_its_own_for_each_element():
    flat = torch.zeros(64)
    for size, stride in (((2, 8), (8, 1)), ((2, 8), (16, 1)), ((8, 2), (1, 8)), ((1, 8), (0, 1)), ((4, 1), (3, 0))):
        checks.separate("out", flat.as_strided(size, stride))
    checks.separate("out", flat[:0].view(0, 4))
    for size, stride in (((2, 8), (7, 1)), ((2, 8), (0, 1)), ((2, 8), (1, 1)), ((2, 8), (8, 0)), ((8, 2), (1, 7))):
        with pytest.raises(checks.BadArgument, match=r"out.stride\(\): got .*, wanted rows that do not share memory"):
            checks.separate("out", flat.as_strided(size, stride))
