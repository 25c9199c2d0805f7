"""The grouped products under Triton's interpreter. Run by test_kernels.py in a process that has Triton."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch

from tests.ops.table import MOE_CASES, MoeCase, moe_inputs, relative_error
from xpu_moe.cpu import moe_fp8_block, moe_fp8_tensor, moe_u4
from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.ops.activation import is_gated
from xpu_moe.ops.checks import BadArgument
from xpu_moe.ops.moe_fp8_tensor import Fp8TensorWeights
from xpu_moe.ops.prepared import COLUMN_MAJOR, PreparedInputs, empty_scale
from xpu_moe.triton import grouped
from xpu_moe.triton.grouped import U4, Fp8Block, Fp8Tensor, Tiles

# The interpreter takes about a second a case: the smallest shapes that have every branch.
CASES = (*(case for case in MOE_CASES if 0 < case.tokens <= 16), MoeCase(5, 4, 8, 128, 64, 64, activation="relu2"))


TILES = grouped.tiles


@pytest.fixture(autouse=True, params=("cuda", "xpu"))
def tiles_of(request, monkeypatch):
    """Every test with the tiles of either accelerator: the interpreter runs on "cpu"."""
    monkeypatch.setattr(grouped, "tiles", lambda *case: TILES(*case[:5], request.param))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=("fp32", "bf16"))
def test_u4_agrees_with_float64(case, dtype):
    args = moe_inputs(case, dtype)
    truth = moe_u4.reference(**args, nibble=case.nibble, group_size=case.group, activation=case.activation)
    out = torch.full_like(args["x"], float("nan"))
    U4().run(**args, nibble=case.nibble, group_size=case.group, activation=case.activation, layout="n_major", out=out)
    assert relative_error(out, truth) < (1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("activation", ("silu", "relu2_no_mul"))
@pytest.mark.parametrize("group", (32, 128))
def test_u4_reads_the_decode_kernels_order(activation, group):
    layout = pytest.importorskip("xpu_moe.cuda.decode.layout")
    args = moe_inputs(MoeCase(3, 3, 2, 128, 128, group, activation=activation), torch.float32)
    truth = moe_u4.reference(**args, nibble="u4", group_size=group, activation=activation)
    weights = Int4MoeWeights(
        args["w13"], args["w13_scale"], args["w2"], args["w2_scale"], "u4", group, gated=is_gated(activation)
    )
    packed = layout.pack(weights)
    args.update({name: getattr(packed, name) for name in ("w13", "w13_scale", "w2", "w2_scale")})
    out = torch.empty_like(args["x"])
    U4().run(**args, nibble="u4", group_size=group, activation=activation, layout=packed.layout, out=out)
    assert relative_error(out, truth) < 1e-5


def test_routes_out_of_range_are_dropped_and_repeated_ones_count_twice():
    args = moe_inputs(MoeCase(4, 4, 3, 128, 64, 64), torch.float32)
    args["topk_ids"] = torch.tensor([[-1, 4, 2], [1, 1, 1], [-1, -7, 99], [3, 0, 3]], dtype=torch.int32)
    args["w13"][:0] = 0
    truth = moe_u4.reference(**args, nibble="u4", group_size=64)
    out = torch.full_like(args["x"], float("nan"))
    U4().run(**args, nibble="u4", group_size=64, activation="silu", layout="n_major", out=out)
    assert relative_error(out, truth) < 1e-5
    assert torch.equal(out[2], torch.zeros(128))


def test_columns_of_x_may_be_strided_and_weights_may_not():
    args = moe_inputs(MoeCase(4, 3, 2, 128, 64, 64), torch.float32)
    truth = moe_u4.reference(**args, nibble="u4", group_size=64)
    settings = {"nibble": "u4", "group_size": 64, "activation": "silu", "layout": "n_major"}
    out = torch.empty_like(args["x"])
    args["x"] = args["x"].t().contiguous().t()
    U4().run(**args, **settings, out=out)
    assert relative_error(out, truth) < 1e-5
    for name in ("w13", "w2"):
        turned = args[name].transpose(1, 2).contiguous().transpose(1, 2)
        with pytest.raises(BadArgument, match=f"{name}: got strides .*, wanted contiguous"):
            U4().run(**{**args, name: turned}, **settings, out=out)


def fp8(*shape: int, seed: int) -> torch.Tensor:
    codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    codes[(codes & 0x7F) == 0x7F] = 0x38  # no NaN
    return codes.view(torch.float8_e4m3fn)


def block_arguments(tokens: int, activation: str) -> dict:
    rows = 256 if is_gated(activation) else 128
    draw = torch.Generator().manual_seed(3)
    return {
        "w13": fp8(3, rows, 256, seed=1),
        "w13_scale": torch.rand(3, rows // 128, 2, generator=draw) * 1e-3,
        "w2": fp8(3, 256, 128, seed=2),
        "w2_scale": torch.rand(3, 2, 1, generator=draw) * 1e-3,
        "topk_weights": torch.rand(tokens, 2, generator=draw),
        "topk_ids": torch.randint(0, 3, (tokens, 2), dtype=torch.int32, generator=draw),
    }


@pytest.mark.parametrize("activation", ("silu", "relu2_no_mul"))
@pytest.mark.parametrize("prepared", (False, True))
def test_block_scaled_fp8_agrees_with_float64(activation, prepared):
    args = block_arguments(5, activation)
    args["w13_scale"][1] = 0.0  # a dead expert: 0, never NaN
    args["w2_scale"][2] = 1e-38
    x, scale = torch.randn(5, 256, generator=torch.Generator().manual_seed(7)).bfloat16(), None
    if prepared:
        x, scale = fp8(5, 256, seed=4), torch.rand(5, 2, generator=torch.Generator().manual_seed(8)) * 1e-2
        inputs = PreparedInputs(
            args["topk_weights"], args["topk_ids"], x, empty_scale(5, 2, COLUMN_MAJOR, "cpu").copy_(scale), 256,
            COLUMN_MAJOR,
        )  # fmt: skip
        x, scale = inputs.x_q, inputs.x_scale
    truth = moe_fp8_block.reference(x, scale, **args, activation=activation)
    out = torch.full((5, 256), float("nan"), dtype=torch.bfloat16)
    Fp8Block().run(x, scale, **args, activation=activation, layout="n_major", out=out)
    assert relative_error(out, truth) < 1e-2


def test_xpu_s_tiles_of_many_rows_agree_as_well(monkeypatch):
    wide = TILES("fp8_block", 2048, 8, 256, 128, "xpu")
    assert wide == Tiles(64, 64, 64, 8, 2)
    monkeypatch.setattr(grouped, "tiles", lambda *case: wide)
    test_block_scaled_fp8_agrees_with_float64("silu", True)


@pytest.mark.parametrize("activation", ("silu", "relu2_no_mul"))
def test_per_tensor_fp8_agrees_with_float64(activation):
    args = block_arguments(5, activation)
    one, draw = torch.tensor(1.0), torch.Generator().manual_seed(11)
    scales = (torch.rand(2, 3, generator=draw) + 0.1) * 1e-2
    weights = Fp8TensorWeights(args["w13"], scales[0], args["w2"], scales[1], one, one, activation)
    x = torch.randn(5, 256, generator=draw).bfloat16()
    truth = moe_fp8_tensor.grouped(x, weights, args["topk_weights"], args["topk_ids"], torch.float64)
    out = torch.empty_like(x)
    Fp8Tensor().run(x, weights, args["topk_weights"], args["topk_ids"], out=out)
    assert relative_error(out, truth) < 1e-2


def test_a_workspace_of_the_stated_size_is_enough_and_changes_nothing():
    from xpu_moe.ops.contract import Case

    args = moe_inputs(MoeCase(5, 4, 2, 128, 128, 64), torch.float32)
    case = Case("moe_u4", "cuda", "sm_90", "float32", 5, 0, 128, 128, 4, 2, 64, "u4", "silu", "int4")
    backend = U4()
    size = backend.workspace(case)
    guarded = torch.full((size + 4096,), 0x5A, dtype=torch.uint8)
    plain, used = torch.empty_like(args["x"]), torch.empty_like(args["x"])
    settings = {"nibble": "u4", "group_size": 64, "activation": "silu", "layout": "n_major"}
    backend.run(**args, **settings, out=plain)
    backend.run(**args, **settings, out=used, workspace=guarded[:size])
    assert torch.equal(plain, used)
    assert bool((guarded[size:] == 0x5A).all())
    assert dataclasses.asdict(case)["tokens"] == 5


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
