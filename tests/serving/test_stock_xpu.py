"""Prefill by vllm-xpu-kernels reads the storage that decode reads; shown with a stand-in that records addresses."""

from __future__ import annotations

import pytest
import torch

from tests.ops.table import MoeCase, moe_inputs, relative_error
from tests.serving import xpu_kernels
from xpu_moe import ops
from xpu_moe.cpu.moe_u4 import reference
from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.ops.contract import Case
from xpu_moe.serving import stock_xpu, workspace

SHAPE = MoeCase(tokens=6, experts=4, top_k=2, hidden=128, inter=64, group=32)
CASE = Case("moe_u4", "xpu", dtype="float16", group_size=32, nibble="s4", activation="silu", scheme="int4")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh():
    stock_xpu._convention.cache_clear()
    workspace._buffers.clear()
    yield
    stock_xpu._convention.cache_clear()
    workspace._buffers.clear()


def layer(seed: int, dtype=torch.float16):
    """(weights as s4, x and routes, the float64 truth)."""
    drawn = moe_inputs(SHAPE, dtype, seed)
    names = ("w13", "w13_scale", "w2", "w2_scale")
    truth = reference(**drawn, nibble="u4", group_size=32)
    weights = Int4MoeWeights(*(drawn[name] for name in names), "u4", 32).as_nibble("s4")
    return weights, {key: drawn[key] for key in ("x", "topk_weights", "topk_ids")}, truth


def decode(weights, call):
    return ops.moe_u4(
        call["x"], weights.w13, weights.w13_scale, weights.w2, weights.w2_scale, call["topk_weights"],
        call["topk_ids"], nibble=weights.nibble, group_size=weights.group_size,
    )  # fmt: skip


@pytest.mark.parametrize("style", xpu_kernels.STYLES)
@pytest.mark.parametrize("prefill_first", [True, False])
def test_one_storage_and_neither_first_call_breaks_the_other(monkeypatch, style, prefill_first):
    recorded = xpu_kernels.install(monkeypatch, style)
    assert stock_xpu.support(CASE, CPU).ok
    weights, call, truth = layer(1)
    addresses = weights.w13.data_ptr(), weights.w2.data_ptr()
    scales = weights.w13_scale.data_ptr(), weights.w2_scale.data_ptr()
    kept = weights.w13.clone(), weights.w2.clone()
    prefill = stock_xpu.Prefill(weights, SHAPE.top_k, "silu", torch.float16)
    ways = [lambda: prefill.run(**call), lambda: decode(weights, call)]
    for way in ways if prefill_first else reversed(ways):
        assert relative_error(way(), truth) < 2e-3
    for way in ways:
        assert relative_error(way(), truth) < 2e-3
    assert set(recorded.weights) == {addresses} and set(recorded.scales) == {scales}
    assert (weights.w13.data_ptr(), weights.w2.data_ptr()) == addresses
    assert torch.equal(weights.w13, kept[0]) and torch.equal(weights.w2, kept[1])
    assert recorded.conversions == 1, "only the tiny layer that shows the convention may be converted by the package"


def test_bf16_rounds_scales_into_a_shared_buffer_and_keeps_ours(monkeypatch):
    recorded = xpu_kernels.install(monkeypatch, "0.1.16")
    assert "float16 keeps all bits" in stock_xpu.support(Case(**{**vars(CASE), "dtype": "bfloat16"}), CPU).reason
    layers = [layer(seed, torch.bfloat16) for seed in (1, 2)]
    ours = [weights.w13_scale.clone() for weights, _, _ in layers]
    ways = [stock_xpu.Prefill(weights, SHAPE.top_k, "silu", torch.bfloat16) for weights, _, _ in layers]
    for index in (0, 1, 0):
        weights, call, truth = layers[index]
        assert relative_error(ways[index].run(**call), truth) < 1e-2
        assert relative_error(decode(weights, call), truth) < 1e-2
        assert torch.equal(weights.w13_scale, ours[index]) and weights.w13_scale.dtype == torch.float16
    assert len(set(recorded.scales)) == 1, "all layers share one buffer"
    assert recorded.scales[0][0] not in [weights.w13_scale.data_ptr() for weights, _, _ in layers]


@pytest.mark.parametrize("style, said", [("transposing", "another layout"), ("unmarked", "no mark")])
def test_a_release_with_another_layout_is_refused(monkeypatch, style, said):
    xpu_kernels.install(monkeypatch, style)
    support = stock_xpu.support(CASE, CPU)
    assert not support.ok and said in support.reason


def test_without_the_package_the_reason_says_so():
    support = stock_xpu.support(CASE, CPU)
    assert not support.ok and "does not import" in support.reason


@pytest.mark.parametrize("change", [{"activation": "relu2"}, {"dtype": "float32"}, {"group_size": 256}])
def test_what_the_gemm_lacks_is_named(monkeypatch, change):
    xpu_kernels.install(monkeypatch, "0.1.16")
    support = stock_xpu.support(Case(**{**vars(CASE), **change}), CPU)
    assert not support.ok and str(next(iter(change.values()))) in support.reason


def test_unconverted_weights_are_refused(monkeypatch):
    xpu_kernels.install(monkeypatch, "0.1.16")
    weights, _, _ = layer(1)
    with pytest.raises(ValueError, match="wanted n_major s4"):
        stock_xpu.Prefill(weights.as_nibble("u4"), SHAPE.top_k, "silu", torch.float16)


def test_a_buffer_that_was_handed_out_is_never_moved():
    first = workspace.shared(16, CPU)
    grown = workspace.shared(64, CPU)
    first.fill_(1)
    grown.fill_(2)
    assert bool((first == 1).all()) and workspace.shared(8, CPU).data_ptr() == grown.data_ptr()
