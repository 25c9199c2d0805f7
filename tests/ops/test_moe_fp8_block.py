"""`moe_fp8_block` through the public operator on the CPU, against float64."""

from __future__ import annotations

import pytest
import torch

from tests.ops.table import relative_error
from xpu_moe.cpu.moe_fp8_block import reference
from xpu_moe.ops.activation import is_gated
from xpu_moe.ops.checks import BadArgument
from xpu_moe.ops.moe_fp8_block import moe_fp8_block, selection
from xpu_moe.ops.prepared import COLUMN_MAJOR, ROW_MAJOR, PreparedInputs, empty_scale


def codes(*shape: int, seed: int) -> torch.Tensor:
    raw = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    raw[(raw & 0x7F) == 0x7F] = 0x38
    return raw.view(torch.float8_e4m3fn)


def layer(activation: str) -> tuple[torch.Tensor, ...]:
    rows = 128 * (2 if is_gated(activation) else 1)
    draw = torch.Generator().manual_seed(1)
    return (
        codes(4, rows, 256, seed=2), torch.rand(4, rows // 128, 2, generator=draw) * 1e-3,
        codes(4, 256, 128, seed=3), torch.rand(4, 2, 1, generator=draw) * 1e-3,
    )  # fmt: skip


def prepared(tokens: int, layout: str = ROW_MAJOR, hidden: int = 256) -> PreparedInputs:
    scale = empty_scale(tokens, 2, layout, "cpu").copy_(torch.rand(tokens, 2) * 1e-2)
    ids = torch.randint(0, 4, (tokens, 2), dtype=torch.int32)
    return PreparedInputs(torch.rand(tokens, 2), ids, codes(tokens, 256, seed=4), scale, hidden, layout)


@pytest.mark.parametrize("activation", ("silu", "relu2", "relu2_no_mul", "silu_no_mul"))
@pytest.mark.parametrize("layout", (ROW_MAJOR, COLUMN_MAJOR))
def test_prepared_inputs_agree_with_float64(activation, layout):
    inputs, weights = prepared(5, layout), layer(activation)
    truth = reference(inputs.x_q, inputs.x_scale, *weights, inputs.topk_weights, inputs.topk_ids, activation=activation)
    out = torch.full((5, 256), float("nan"), dtype=torch.bfloat16)
    assert moe_fp8_block(inputs, *weights, activation=activation, out=out) is out
    assert relative_error(out, truth) < 1e-2
    assert torch.equal(out, moe_fp8_block(inputs, *weights, activation=activation))
    assert selection(inputs, *weights, activation=activation).name == "cpu_grouped"


def test_plain_inputs_and_dead_experts():
    weights = layer("silu")
    weights[1][1] = 0.0
    weights[3][2] = 1e-38
    inputs = prepared(4)
    x = inputs.dequantized()
    out = moe_fp8_block(x, *weights, inputs.topk_weights, inputs.topk_ids)
    truth = reference(x, None, *weights, inputs.topk_weights, inputs.topk_ids)
    assert out.dtype == torch.float32 and bool(out.isfinite().all())
    assert relative_error(out, truth) < 1e-5
    assert moe_fp8_block(x[:0], *weights, inputs.topk_weights[:0], inputs.topk_ids[:0]).shape == (0, 256)


def test_what_does_not_fit_is_named():
    weights, inputs = layer("silu"), prepared(3)
    with pytest.raises(BadArgument, match="padded columns, the weights have 256|hidden_size: prepared for 200"):
        moe_fp8_block(prepared(3, hidden=200), *weights)
    with pytest.raises(BadArgument, match="left out: prepared inputs hold them"):
        moe_fp8_block(inputs, *weights, inputs.topk_weights, inputs.topk_ids)
    with pytest.raises(BadArgument, match="topk_weights, topk_ids: got left out"):
        moe_fp8_block(inputs.dequantized(), *weights)
    with pytest.raises(BadArgument, match=r"w13.shape"):
        moe_fp8_block(inputs, *weights, activation="relu2_no_mul")
    with pytest.raises(BadArgument, match=r"topk_ids\[0, 0\]: got 9"):
        ids = inputs.topk_ids.clone()
        ids[0, 0] = 9
        moe_fp8_block(inputs.dequantized(), *weights, inputs.topk_weights, ids)


@pytest.mark.slow
def test_the_fake_agrees():
    weights, inputs = layer("silu"), prepared(3)
    arguments = (inputs.x_q, inputs.x_scale, *weights, inputs.topk_weights, inputs.topk_ids, "silu", "n_major")
    torch.library.opcheck(torch.ops.xpu_moe.moe_fp8_block.default, arguments, test_utils="test_faketensor")
