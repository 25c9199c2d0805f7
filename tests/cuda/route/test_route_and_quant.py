"""route_and_quant_fp8: the CPU reference against plain definitions, the API's refusals, the CUDA backend's answers."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_moe import ops
from xpu_moe.cpu.route_and_quant_fp8 import power_of_two_above, quantize
from xpu_moe.ops.checks import BadArgument
from xpu_moe.ops.contract import Case, select
from xpu_moe.ops.route_and_quant_fp8 import Options, Plan, case_of, empty, route_and_quant_fp8, selection


def arguments(tokens: int, hidden: int, experts: int = 32, dtype: torch.dtype = torch.bfloat16, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=draw).to(dtype)
    return x, torch.randn(tokens, experts, generator=draw), torch.randn(experts, generator=draw) * 0.1


def one_group(values: torch.Tensor, ue8m0: bool) -> tuple[torch.Tensor, float]:
    """The definition, one group at a time, in Python floats that hold float32 values."""
    largest = max([1e-10, *(abs(v) for v in values.float().tolist() if v == v)])
    scale = (torch.tensor(largest) / torch.tensor(448.0)).item()
    if ue8m0:
        exponent = torch.frexp(torch.tensor(scale))
        scale = float(2.0 ** int(exponent.exponent - (exponent.mantissa == 0.5).int()))
    quotient = values.float() / torch.tensor(scale, dtype=torch.float32)
    return quotient.clamp(-448, 448).to(torch.float8_e4m3fn), scale


@pytest.mark.parametrize("hidden", (3072, 3000, 384, 128, 64, 1))
@pytest.mark.parametrize("ue8m0", (False, True))
@pytest.mark.parametrize("tokens", (1, 3))
def test_every_group_follows_the_definition_whatever_the_hidden_size(hidden, ue8m0, tokens):
    x, logits, bias = arguments(tokens, hidden)
    found = route_and_quant_fp8(x, logits, bias, 4, scale_ue8m0=ue8m0)
    assert selection(x, logits, Options(4, scale_ue8m0=ue8m0)).name == "cpu_pair"
    assert found.x_scale.shape == (tokens, -(-hidden // 128))
    for row, start in itertools.product(range(tokens), range(0, hidden, 128)):
        end = min(start + 128, hidden)
        codes, scale = one_group(x[row, start:end], ue8m0)
        assert found.x_scale[row, start // 128].item() == scale
        assert torch.equal(found.x_q[row, start:end].view(torch.uint8), codes.view(torch.uint8))
        assert (found.x_q[row, end : start + 128].view(torch.uint8) == 0).all()


def test_routing_is_that_of_route_sigmoid_topk():
    x, logits, bias = arguments(5, 256)
    found = route_and_quant_fp8(x, logits, bias, 8, renormalize=False, scale=2.5)
    weights, ids = ops.route_sigmoid_topk(logits, bias, 8, renormalize=False, scale=2.5)
    assert torch.equal(found.topk_ids, ids) and torch.equal(found.topk_weights, weights)


def test_padding_holds_zero_codes_and_does_not_touch_the_last_groups_scale():
    x, logits, bias = arguments(2, 200)
    plain = route_and_quant_fp8(x, logits, bias, 2)
    padded = route_and_quant_fp8(x, logits, bias, 2, padded_hidden_size=384)
    assert padded.x_q.shape == (2, 384) and padded.x_scale.shape == (2, 3)
    assert torch.equal(padded.x_scale[:, :2], plain.x_scale)
    assert (padded.x_q[:, 200:].view(torch.uint8) == 0).all()


@pytest.mark.parametrize("layout", ("row_major", "column_major"))
def test_prepared_inputs_carry_layout_format_and_the_true_hidden_size(layout):
    from xpu_moe.ops.route_and_quant_fp8 import prepare_inputs

    x, logits, bias = arguments(5, 300)
    made = prepare_inputs(x, logits, bias, 2, scale_layout=layout, scale_ue8m0=True)
    assert (made.hidden_size, made.padded_hidden_size, made.scale_layout, made.scale_ue8m0) == (300, 384, layout, True)
    assert (made.dequantized() - x.float()).abs().max() <= x.float().abs().max() / 14


def test_column_layout_has_the_strides_that_tma_wants():
    x, logits, bias = arguments(5, 512)
    row = route_and_quant_fp8(x, logits, bias, 2)
    column = route_and_quant_fp8(x, logits, bias, 2, scale_layout="column_major")
    assert column.x_scale.stride() == (1, 8) and torch.equal(column.x_scale, row.x_scale)


@given(st.floats(min_value=2.0**-100, max_value=2.0**100, width=32))
@settings(max_examples=200, deadline=None)
def test_ue8m0_is_the_power_of_two_at_or_above(scale):
    found = power_of_two_above(torch.tensor([scale])).item()
    assert found >= scale > found / 2 and torch.frexp(torch.tensor(found)).mantissa == 0.5


def test_odd_values_are_defined():
    x = torch.zeros(3, 256)
    x[0, 3], x[0, 4], x[1, 0], x[1, 1] = float("nan"), 1.0, float("inf"), 2.0
    codes, scales = quantize(x, 128, False)
    raw = codes.view(torch.uint8)
    assert raw[0, 3] == 0x7F and codes[0, 4].item() == 448.0 and scales[0, 0].item() == pytest.approx(1 / 448)
    assert scales[1, 0].item() == float("inf") and raw[1, 0] == 0x7F and raw[1, 1] == 0
    assert (raw[2] == 0).all() and torch.equal(scales[2], torch.tensor([1e-10, 1e-10]) / torch.tensor(448.0))


def test_strided_rows_and_no_tokens():
    x, logits, bias = arguments(4, 256)
    wide = torch.cat([x, x], dim=1)[:, :256]
    assert not wide.is_contiguous()
    for a, b in zip(route_and_quant_fp8(wide, logits, bias, 2), route_and_quant_fp8(x, logits, bias, 2)):
        assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
    none = route_and_quant_fp8(x[:0], logits[:0], bias, 2)
    assert none.x_q.shape == (0, 256) and none.topk_ids.shape == (0, 2)


def test_out_is_written_and_checked():
    x, logits, bias = arguments(4, 256)
    out = empty(x, Options(2))
    assert route_and_quant_fp8(x, logits, bias, 2, out=out) is out
    assert torch.equal(out.topk_ids, route_and_quant_fp8(x, logits, bias, 2).topk_ids)
    with pytest.raises(BadArgument, match=r"out.x_scale.shape: got \(4, 2\), wanted \(4, 4\)"):
        route_and_quant_fp8(x, logits, bias, 2, group_size=64, out=out)
    with pytest.raises(BadArgument, match="column_major layout"):
        route_and_quant_fp8(x, logits, bias, 2, scale_layout="column_major", out=out)


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"group_size": 100}, "group_size: got 100, wanted 32 or 64"),
        ({"scale_layout": "tma"}, "scale_layout: got 'tma', wanted row_major or column_major"),
        ({"padded_hidden_size": 100}, "padded_hidden_size: got 100, wanted at least the hidden size 256"),
        ({"x": torch.zeros(256, 4, dtype=torch.bfloat16).T}, r"x.stride\(1\): got 4"),
        ({"x": torch.zeros(3, 256)}, r"logits.shape\[0\]: got 4, wanted 3"),
    ),
)
def test_refusals_name_the_argument(change, message):
    x, logits, bias = arguments(4, 256)
    x = change.pop("x", x)
    with pytest.raises(BadArgument, match=message):
        route_and_quant_fp8(x, logits, bias, 2, **change)


def test_the_compiled_operator_and_its_fake_agree_with_the_eager_call():
    x, logits, bias = arguments(4, 300)
    options = Options(2, True, 1.0, 128, "row_major", True, 384)
    eager = route_and_quant_fp8(x, logits, bias, 2, scale_ue8m0=True, padded_hidden_size=384)
    for a, b in zip(eager, torch.ops.xpu_moe.route_and_quant_fp8(x, logits, bias, *options)):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    with torch._subclasses.FakeTensorMode() as mode:
        fakes = torch.ops.xpu_moe.route_and_quant_fp8(*(mode.from_tensor(t) for t in (x, logits, bias)), *options)
    assert [(f.shape, f.dtype, f.stride()) for f in fakes] == [(e.shape, e.dtype, e.stride()) for e in eager]


def cuda_case(**changes) -> Case:
    x, logits, _ = arguments(4, 256)
    wanted = {"device": "cuda", "architecture": "sm_90", **changes}
    return Case(**{**case_of(x, logits, Options(2)).__dict__, **wanted})


def test_on_hopper_one_launch_is_taken_and_says_its_thresholds(monkeypatch):
    from xpu_moe.cuda import compiler

    monkeypatch.setattr(compiler, "available", lambda: "nvrtc somewhere")
    chosen = select(cuda_case())
    assert chosen.name == "cuda_split_grid" and "M <= " in chosen.reason


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"architecture": "sm_80"}, "architecture 'sm_80': it needs sm_89 or later"),
        ({"num_experts": 600}, "num_experts 600: a warp holds at most 512"),
        ({"top_k": 33}, "top_k 33: a warp selects 1 to 32"),
        ({"group_size": 48}, "group_size 48"),
    ),
)
def test_the_cuda_backend_refuses_with_the_numbers(change, message):
    from xpu_moe.cuda.route_quant.backend import RouteAndQuant

    answer = RouteAndQuant().supports(cuda_case(**change))
    assert not answer.ok and message in answer.reason


def test_without_a_compiler_the_reason_says_so(monkeypatch):
    from xpu_moe.cuda import compiler
    from xpu_moe.cuda.route_quant.backend import RouteAndQuant

    monkeypatch.setattr(compiler, "available", lambda: "")
    answer = RouteAndQuant().supports(cuda_case())
    assert not answer.ok and "no NVRTC and no nvcc" in answer.reason


@pytest.mark.parametrize(
    ("tokens", "groups", "group_size", "unroll", "wanted"),
    ((1, 24, 128, 1, (1, 2)), (5, 24, 128, 1, (2, 8)), (4096, 24, 128, 2, (1024, 3072)), (1, 1, 256, 1, (1, 1))),
)
def test_the_grid_covers_every_token_and_group(tokens, groups, group_size, unroll, wanted):
    from xpu_moe.cuda.route_quant.launch import grid

    route_blocks, quant_blocks = grid(tokens, groups, group_size, unroll)
    assert (route_blocks, quant_blocks) == wanted
    assert route_blocks * 4 >= tokens
    assert quant_blocks * 4 * unroll * (512 // group_size) >= tokens * groups


@pytest.mark.parametrize("tokens", (1, 256, 257, 4096, 1 << 20))
def test_the_tuning_table_has_a_row_for_every_size_and_a_source(tokens):
    from xpu_moe.cuda.route_quant import tuning

    assert tuning.choice(tokens).tokens >= tokens and tuning.choice(tokens).source


def test_a_plan_repeats_one_call_and_refuses_another():
    x, logits, bias = arguments(4, 256)
    plan = Plan(x, logits, bias, 2, scale_ue8m0=True)
    wanted = route_and_quant_fp8(x, logits, bias, 2, scale_ue8m0=True)
    assert plan(x, logits, bias) is plan.out
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(plan.out, wanted))
    with pytest.raises(BadArgument, match="as planned; make a plan for this call"):
        plan(x[:3], logits[:3], bias)
    with pytest.raises(BadArgument, match="bias: got None, wanted"):
        plan(x, logits, None)


@pytest.mark.parametrize("tokens", (1, 3, 4, 5, 64, 1000, 4096))
@pytest.mark.parametrize("unroll", (1, 2))
@pytest.mark.parametrize("spread", (0, 2, 9))
def test_every_block_has_one_role_and_every_role_its_blocks(tokens, unroll, spread):
    """The kernel's arithmetic: block b routes when b is a multiple of 2^spread and b >> spread < route blocks."""
    from xpu_moe.cuda.route_quant.launch import fitting, grid

    route_blocks, quant_blocks = grid(tokens, 24, 128, unroll)
    shift = fitting(spread, route_blocks, quant_blocks)
    routing, quantising = [], []
    for block in range(route_blocks + quant_blocks):
        turn = block >> shift
        if turn < route_blocks and turn << shift == block:
            routing.append(turn)
        else:
            quantising.append(block - min(turn + 1, route_blocks))
    assert routing == list(range(route_blocks)) and quantising == list(range(quant_blocks))
