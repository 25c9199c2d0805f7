"""The decode kernels and the grouped products on an NVIDIA card, through the public operators, against float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.ops.table import MoeCase, moe_inputs, relative_error
from xpu_moe import device
from xpu_moe.cpu import moe_fp8_block as cpu_fp8
from xpu_moe.cpu import moe_u4 as cpu_u4
from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.ops.activation import is_gated
from xpu_moe.ops.contract import Case, select
from xpu_moe.ops.moe_fp8_block import moe_fp8_block
from xpu_moe.ops.moe_fp8_block import selection as fp8_selection
from xpu_moe.ops.moe_u4 import moe_u4
from xpu_moe.ops.moe_u4 import selection as u4_selection
from xpu_moe.ops.prepared import COLUMN_MAJOR, ROW_MAJOR, PreparedInputs, empty_scale

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or device.architecture("cuda") != "sm_90", reason="needs a Hopper card (sm_90)"
)

U4_CASES = (
    MoeCase(1, 8, 2, 256, 128, 128),
    MoeCase(4, 8, 2, 256, 128, 64, nibble="s4"),
    MoeCase(5, 16, 4, 384, 256, 32, activation="relu2"),
    MoeCase(8, 8, 8, 256, 128, 128),  # every expert has all tokens: 8 columns, and
    MoeCase(9, 8, 8, 256, 128, 64),  # 9: one more chunk
    MoeCase(16, 16, 4, 256, 128, 128, activation="relu2_no_mul"),
    MoeCase(17, 16, 4, 256, 384, 128, activation="silu_no_mul"),
    MoeCase(64, 8, 8, 256, 128, 128),  # every expert has up to 64 tokens: many chunks of 8
)


def u4_arguments(case: MoeCase, dtype: torch.dtype, change=None) -> tuple[dict, torch.Tensor, dict]:
    """(arguments on the card in the decode kernel's order, float64 truth, keywords)."""
    args = moe_inputs(case, dtype)
    if change is not None:
        change(args)
    truth = cpu_u4.reference(**args, nibble=case.nibble, group_size=case.group, activation=case.activation)
    names = ("w13", "w13_scale", "w2", "w2_scale")
    weights = Int4MoeWeights(
        **{name: args[name].cuda() for name in names}, nibble=case.nibble, group_size=case.group,
        gated=is_gated(case.activation),
    )  # fmt: skip
    before = {name: getattr(weights, name).data_ptr() for name in names}
    wanted = Case(
        "moe_u4", "cuda", "sm_90", str(dtype).removeprefix("torch."), case.tokens, 0, case.hidden, case.inter,
        case.experts, case.top_k, case.group, "u4", case.activation, "int4", "sm90_mma",
    )  # fmt: skip
    packed = select(wanted, "cuda_u4_decode").backend.prepare(weights, wanted)
    assert {name: getattr(packed, name).data_ptr() for name in names} == before, "prepare made a copy"
    assert packed.nbytes == weights.nbytes
    moved = {name: args[name].cuda() for name in ("x", "topk_weights", "topk_ids")}
    moved.update({name: getattr(packed, name) for name in names})
    return (
        moved,
        truth,
        {"nibble": "u4", "group_size": case.group, "activation": case.activation, "layout": packed.layout},
    )


def positional(args: dict) -> tuple:
    return tuple(args[n] for n in ("x", "w13", "w13_scale", "w2", "w2_scale", "topk_weights", "topk_ids"))


@pytest.mark.parametrize("case", U4_CASES, ids=str)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=("bf16", "fp16"))
def test_u4_agrees_with_float64_and_with_itself(case, dtype):
    args, truth, keywords = u4_arguments(case, dtype)
    assert u4_selection(*positional(args), **keywords).name == "cuda_u4_decode"
    outs = []
    for _ in range(3):
        out = torch.full_like(args["x"], float("nan"))
        outs.append(moe_u4(*positional(args), **keywords, out=out))
    assert relative_error(outs[0], truth) < (1e-2 if dtype is torch.bfloat16 else 1e-3)
    assert all(torch.equal(outs[0], other) for other in outs), "equal inputs gave different bits"


def test_ids_out_of_range_have_weight_0_and_are_never_read():
    def change(args):
        args["topk_ids"][0] = -1
        args["topk_ids"][1] = torch.tensor([8, 1 << 30])
        args["topk_ids"][2] = args["topk_ids"][2, 0]  # twice the same: counts twice

    args, truth, keywords = u4_arguments(MoeCase(4, 8, 2, 256, 128, 128), torch.bfloat16, change)
    out = moe_u4(*positional(args), **keywords)
    assert relative_error(out, truth) < 1e-2
    assert not out[:2].any()


@pytest.mark.parametrize("value", (float("inf"), float("nan"), 6e4), ids=("inf", "nan", "h overflows"))
@pytest.mark.parametrize("activation", ("silu", "relu2_no_mul"))
@pytest.mark.parametrize("tokens", (4, 16))
def test_a_token_that_is_not_finite_gives_no_number_and_the_others_are_right(tokens, activation, value):
    """6e4 in every place: fp16 h overflows on the way, which has to show as well."""

    def change(args):
        args["x"][1, slice(None) if value == 6e4 else 5] = value
        args["topk_ids"][1] = args["topk_ids"][0]  # it shares its experts

    case = MoeCase(tokens, 8, 2, 256, 128, 128, activation=activation)
    args, truth, keywords = u4_arguments(case, torch.float16, change)
    out = moe_u4(*positional(args), **keywords)
    assert not bool(out[1].isfinite().any())
    others = [i for i in range(tokens) if i != 1]
    assert relative_error(out[others], truth[others]) < 1e-3


def test_int64_ids_strided_rows_and_no_tokens():
    case = MoeCase(4, 8, 2, 256, 128, 128)
    args, truth, keywords = u4_arguments(case, torch.bfloat16)
    wide = torch.zeros(4, 512, dtype=torch.bfloat16, device="cuda")
    wide[:, :256] = args["x"]
    args.update(x=wide[:, :256], topk_ids=args["topk_ids"].long())
    assert relative_error(moe_u4(*positional(args), **keywords), truth) < 1e-2
    none = {**args, **{n: args[n][:0] for n in ("x", "topk_weights", "topk_ids")}}
    assert moe_u4(*positional(none), **keywords).shape == (0, 256)


def test_prefill_reads_the_same_weights():
    case = MoeCase(130, 8, 2, 256, 128, 128)
    args, truth, keywords = u4_arguments(dataclasses.replace(case, tokens=64), torch.bfloat16)
    big = moe_inputs(case, torch.bfloat16, seed=5)
    small = moe_inputs(dataclasses.replace(case, tokens=64), torch.bfloat16)
    big.update({n: small[n] for n in ("w13", "w13_scale", "w2", "w2_scale")})
    truth = cpu_u4.reference(**big, nibble="u4", group_size=128)
    args.update({n: big[n].cuda() for n in ("x", "topk_weights", "topk_ids")})
    chosen = u4_selection(*positional(args), **keywords)
    assert chosen.name == "triton_grouped" and "at most 64" in str(chosen.refused)
    assert relative_error(moe_u4(*positional(args), **keywords), truth) < 1e-2


def test_a_captured_graph_replays_with_new_inputs_and_other_sizes_between():
    case = MoeCase(4, 8, 2, 256, 128, 128)
    args, _, keywords = u4_arguments(case, torch.bfloat16)
    other, other_truth, other_keywords = u4_arguments(MoeCase(3, 8, 2, 256, 256, 128), torch.bfloat16)
    out = torch.empty_like(args["x"])
    moe_u4(*positional(args), **keywords, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moe_u4(*positional(args), **keywords, out=out)
    for seed in range(4):
        fresh = moe_inputs(case, torch.bfloat16, seed)
        args["x"].copy_(fresh["x"])
        args["topk_ids"].copy_(fresh["topk_ids"])
        graph.replay()
        got = out.clone()
        assert torch.equal(got, moe_u4(*positional(args), **keywords))
        assert relative_error(moe_u4(*positional(other), **other_keywords), other_truth) < 1e-2


def fp8_arguments(tokens: int, hidden: int, inter: int, activation: str, layout: str):
    draw = torch.Generator().manual_seed(tokens)
    rows = inter * (2 if is_gated(activation) else 1)

    def codes(*shape: int) -> torch.Tensor:
        raw = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
        raw[(raw & 0x7F) == 0x7F] = 0x38
        return raw.view(torch.float8_e4m3fn)

    weights = (
        codes(8, rows, hidden), torch.rand(8, rows // 128, hidden // 128, generator=draw) * 1e-3,
        codes(8, hidden, inter), torch.rand(8, hidden // 128, inter // 128, generator=draw) * 1e-3,
    )  # fmt: skip
    weights[1][2] = 0.0  # a dead expert
    weights[3][3] = 1e-38
    scale = empty_scale(tokens, hidden // 128, layout, "cpu").copy_(
        torch.rand(tokens, hidden // 128, generator=draw) * 1e-2
    )
    route_weights = torch.rand(tokens, 2, generator=draw)
    ids = torch.randint(0, 8, (tokens, 2), dtype=torch.int32, generator=draw)
    x = codes(tokens, hidden)
    truth = cpu_fp8.reference(x, scale, *weights, route_weights, ids, activation=activation)
    on_card = empty_scale(tokens, hidden // 128, layout, "cuda").copy_(scale)
    inputs = PreparedInputs(route_weights.cuda(), ids.cuda(), x.cuda(), on_card, hidden, layout)
    return inputs, tuple(w.cuda() for w in weights), truth


@pytest.mark.parametrize("activation", ("silu", "relu2_no_mul", "relu2"))
@pytest.mark.parametrize("tokens", (1, 4, 16, 33, 64, 100))
def test_block_fp8_on_prepared_inputs(tokens, activation):
    layout = COLUMN_MAJOR if tokens % 2 else ROW_MAJOR
    inputs, weights, truth = fp8_arguments(tokens, 384, 256, activation, layout)
    chosen = fp8_selection(inputs, *weights, activation=activation)
    assert chosen.name == ("cuda_fp8_decode" if tokens <= 64 else "triton_grouped")
    out = moe_fp8_block(inputs, *weights, activation=activation)
    assert out.dtype == torch.bfloat16 and bool(out.isfinite().all())
    assert relative_error(out, truth) < 1e-2


def test_block_fp8_from_plain_activations_takes_triton():
    inputs, weights, _ = fp8_arguments(5, 256, 128, "silu", ROW_MAJOR)
    x = inputs.dequantized().bfloat16()
    out = moe_fp8_block(x, *weights, inputs.topk_weights, inputs.topk_ids)
    truth = cpu_fp8.reference(
        x.cpu(), None, *(w.cpu() for w in weights), inputs.topk_weights.cpu(), inputs.topk_ids.cpu()
    )
    assert fp8_selection(x, *weights, inputs.topk_weights, inputs.topk_ids).name == "triton_grouped"
    assert relative_error(out, truth) < 1e-2
