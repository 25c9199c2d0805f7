"""Preparing FP8 weights: one scale an expert, padding, FlashInfer's row order, parameters for every backend."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from xpu_moe.cpu import moe_fp8_tensor as cpu
from xpu_moe.cuda import flashinfer
from xpu_moe.ops.contract import Case
from xpu_moe.ops.moe_fp8_tensor import Fp8TensorWeights, moe_fp8_tensor, padded, requantized, swapped

E4M3 = torch.float8_e4m3fn


def made(activation: str = "silu", inter: int = 24, hidden: int = 32) -> Fp8TensorWeights:
    draw = torch.Generator().manual_seed(inter)
    rows = inter * (1 if activation.endswith("no_mul") else 2)
    scale = torch.rand(3, 2 if rows > inter else 1, generator=draw) * 0.01 + 0.001
    return requantized(
        torch.randn(3, rows, hidden, generator=draw).mul(50).to(E4M3), scale,
        torch.randn(3, hidden, inter, generator=draw).mul(50).to(E4M3), torch.rand(3, generator=draw) * 0.01,
        torch.tensor(0.02), torch.tensor(0.5), activation,
    )  # fmt: skip


def result(weights: Fp8TensorWeights) -> torch.Tensor:
    draw = torch.Generator().manual_seed(9)
    x = torch.randn(4, 32, generator=draw)
    ids = torch.tensor([[0, 1], [2, 0], [1, 1], [2, 1]], dtype=torch.int32)
    return cpu.grouped(x, weights, torch.rand(4, 2, generator=draw), ids, torch.float64)


def test_gate_and_up_come_to_share_the_larger_scale():
    w13 = torch.full((1, 4, 2), 100.0).to(E4M3)
    place = w13.data_ptr()
    weights = requantized(
        w13, torch.tensor([[0.5, 1.0]]), torch.ones(1, 2, 2).to(E4M3), torch.ones(1), torch.tensor(1.0),
        torch.tensor(1.0), "silu",
    )  # fmt: skip
    assert weights.w13_scale.tolist() == [1.0] and weights.w13.data_ptr() == place
    halves = weights.w13.float()[0, :, 0]
    assert abs(halves[0] - halves[2] / 2) <= 4  # an e4m3 step


@pytest.mark.parametrize("activation", ("silu", "relu2_no_mul"))
def test_padding_and_row_order_change_no_result(activation):
    """R12: I 24 -> 32 (gated) or 128 (not gated); the rows move only where there is a gate."""
    weights = made(activation)
    before = result(weights)
    wide = padded(weights, flashinfer.pad_multiple(activation))
    assert wide.intermediate_size == (32 if activation == "silu" else 128)
    assert torch.equal(result(wide), before)
    moved = swapped(dataclasses.replace(wide, w13=wide.w13.clone()))
    if activation == "silu":
        assert moved.layout == "up_gate" and not torch.equal(moved.w13.view(torch.uint8), wide.w13.view(torch.uint8))
        assert torch.equal(swapped(moved).w13.view(torch.uint8), wide.w13.view(torch.uint8))
    else:
        assert moved is not None and moved.layout == "n_major"


@pytest.mark.parametrize("activation", ("silu", "relu2_no_mul"))
def test_parameters_are_the_same_whoever_serves(activation):
    """R10: the set is computed once, and FlashInfer's list is made of it."""
    weights = made(activation)
    derived = weights.parameters()
    assert set(derived) == {"g1_alphas", "g2_alphas", "a1_inverse", "a2_inverse"}
    case = Case("moe_fp8_tensor", "cuda", "sm_90", activation=activation, scheme="fp8_tensor")
    prepared = flashinfer.Fp8Tensor().prepare(dataclasses.replace(weights, w13=weights.w13.clone()), case)
    for name, value in prepared.parameters().items():
        assert torch.equal(value, derived[name]), name
    scales = flashinfer.quant_scales(prepared)
    assert [tuple(s.shape) for s in scales] == [(3,), (), (3,), ()]
    assert torch.equal(scales[0], weights.w13_scale * weights.a1_scale) and float(scales[1]) == 2.0


def test_block_weights_change_places_with_their_scales_and_tiny_scales_are_lifted():
    @dataclasses.dataclass(frozen=True)
    class Block:
        w13: torch.Tensor
        w13_scale: torch.Tensor
        w2: torch.Tensor
        w2_scale: torch.Tensor
        layout: str = "n_major"

    w13 = torch.arange(256).repeat_interleave(128).view(1, 256, 128).to(torch.uint8).view(E4M3)
    given = Block(w13.clone(), torch.tensor([[[1.0], [2.0]]]), torch.zeros(1, 128, 128).to(E4M3), torch.zeros(1, 1, 1))
    case = Case("moe_fp8_block", "cuda", "sm_90", activation="silu", scheme="fp8_block")
    out = flashinfer.Fp8Block().prepare(given, case)
    assert out.layout == "up_gate" and out.w13_scale.flatten().tolist() == [2.0, 1.0]
    assert int(out.w13.view(torch.uint8)[0, 0, 0]) == 128
    assert float(out.w2_scale) == pytest.approx(1e-10)
    assert flashinfer.Fp8Block().prepare(out, case) is out


def test_the_operator_runs_on_the_cpu():
    weights = made("relu2_no_mul")
    x = torch.randn(3, 32)
    ids = torch.zeros(3, 2, dtype=torch.int32)
    routes = torch.rand(3, 2)
    out = moe_fp8_tensor(x, weights, routes, ids)
    truth = cpu.grouped(x, weights, routes, ids, torch.float64)
    assert float((out - truth).norm() / truth.norm()) < 1e-5
    assert moe_fp8_tensor(x[:0], weights, routes[:0], ids[:0]).shape == (0, 32)
