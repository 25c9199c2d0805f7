"""`moe_u4` on the CPU against float64, its semantics, and its checks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.table import MOE_CASES, TOLERANCE, MoeCase, moe_inputs, relative_error
from xpu_moe import ops
from xpu_moe.cpu.moe_u4 import reference
from xpu_moe.ops.checks import BadArgument
from xpu_moe.ops.moe_u4 import selection


def keywords(case: MoeCase) -> dict:
    return {"nibble": case.nibble, "group_size": case.group, "activation": case.activation}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", MOE_CASES, ids=str)
def test_against_float64(case, dtype):
    inputs = moe_inputs(case, dtype)
    assert selection(*inputs.values(), **keywords(case)).name == "cpu_grouped"
    poisoned = torch.full_like(inputs["x"], float("nan"))
    got = ops.moe_u4(**inputs, **keywords(case), out=poisoned)
    assert got is poisoned
    assert relative_error(got, reference(**inputs, **keywords(case))) <= TOLERANCE[dtype]
    assert torch.equal(got, ops.moe_u4(**inputs, **keywords(case))), "functional form, bit for bit"


@pytest.mark.slow
@given(
    tokens=st.integers(0, 64),
    experts=st.integers(1, 64),
    top_k=st.integers(1, 8),
    group=st.sampled_from((32, 64, 128)),
    nibble=st.sampled_from(("u4", "s4")),
    seed=st.integers(0, 2**20),
    duplicated=st.booleans(),
    zeroed=st.booleans(),
    strided=st.booleans(),
    wide=st.booleans(),
    dtype=st.sampled_from(tuple(TOLERANCE)),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(tokens, experts, top_k, group, nibble, seed, duplicated, zeroed, strided, dtype, wide):
    case = MoeCase(tokens, experts, top_k, 128, 128, group, nibble)
    inputs = moe_inputs(case, dtype, seed)
    if duplicated:
        inputs["topk_ids"][:] = inputs["topk_ids"][:, :1]
    if zeroed:
        inputs["topk_weights"][:, -1] = 0
    if strided:
        inputs["x"] = torch.cat((inputs["x"], torch.full_like(inputs["x"], float("nan"))), 1)[:, :128]
    if wide:
        inputs["topk_ids"] = inputs["topk_ids"].long()
    got = ops.moe_u4(**inputs, **keywords(case))
    assert relative_error(got, reference(**inputs, **keywords(case))) <= TOLERANCE[dtype]


def test_all_256_byte_values_mean_what_the_nibble_kind_says():
    for nibble, value in (("u4", lambda n: n - 8), ("s4", lambda n: n - 16 if n >= 8 else n)):
        for byte in range(256):
            weights = {
                "w13": torch.full((1, 32, 16), 0, dtype=torch.uint8), "w13_scale": torch.ones(1, 32, 1).half(),
                "w2": torch.full((1, 32, 16), byte, dtype=torch.uint8), "w2_scale": torch.ones(1, 32, 1).half(),
            }  # fmt: skip
            weights["w13"][:] = {"u4": 0x99, "s4": 0x11}[nibble]  # every weight is 1: relu(1)^2 = 1 for x = e0
            x = torch.zeros(1, 32)
            x[0, 0] = 1
            got = ops.moe_u4(x, **weights, topk_weights=torch.ones(1, 1), topk_ids=torch.zeros(1, 1, dtype=torch.int32),
                             nibble=nibble, group_size=32, activation="relu2_no_mul")  # fmt: skip
            assert got.unique().tolist() == [16.0 * (value(byte & 15) + value(byte >> 4))]


@pytest.mark.parametrize("bad", (-1, 8, 2**31 - 1))
def test_an_expert_id_out_of_range_raises_on_the_cpu(bad):
    inputs = moe_inputs(MOE_CASES[0], torch.float32)
    inputs["topk_ids"][0, 1] = bad
    with pytest.raises(BadArgument, match=rf"topk_ids\[0, 1\]: got {bad}, wanted 0 <= id < 8 experts"):
        ops.moe_u4(**inputs, **keywords(MOE_CASES[0]))


def test_float32_route_weights_are_not_rounded():
    case = MOE_CASES[1]
    exact, rounded = moe_inputs(case, torch.float32), moe_inputs(case, torch.float32)
    rounded["topk_weights"] = rounded["topk_weights"].half()
    truth = reference(**exact, **keywords(case))
    assert relative_error(ops.moe_u4(**exact, **keywords(case)), truth) < 1e-6
    assert relative_error(ops.moe_u4(**rounded, **keywords(case)), truth) > 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"nibble": "q4"}, "nibble: got 'q4', wanted u4 or s4"),
        ({"group_size": 16}, "group_size: got 16, wanted 32 or 64 or 128"),
        ({"x": torch.zeros(1, 250)}, "hidden_size: got 250, wanted a multiple of group_size 64"),
        ({"x": torch.zeros(1, 256, dtype=torch.int32)}, "x.dtype: got torch.int32"),
        ({"w13": torch.zeros(8, 256, 128)}, "w13.dtype: got torch.float32, wanted torch.uint8"),
        ({"w13_scale": torch.zeros(8, 256, 5)}, r"w13_scale.shape: got \(8, 256, 5\), wanted \(8, 256, 4\)"),
        ({"topk_ids": torch.zeros(2, 2, dtype=torch.int32)}, r"topk_ids.shape\[0\]: got 2, wanted 1"),
        ({"topk_weights": torch.zeros(1, 3)}, r"topk_weights.shape: got \(1, 3\), wanted \(1, 2\)"),
        ({"topk_ids": torch.zeros(1, 2)}, "topk_ids.dtype: got torch.float32"),
        ({"out": torch.zeros(2, 256)}, r"out.shape: got \(2, 256\), wanted \(1, 256\)"),
        ({"activation": "gelu"}, "activation: got 'gelu'"),
        ({"x": None}, "x: got NoneType, wanted a tensor of 2 dimensions"),
        ({"x": torch.zeros(1, 256, requires_grad=True)}, "x.requires_grad: got True, wanted False"),
        ({"w2_scale": torch.zeros(8, 256, 1)}, r"w2_scale.shape: got \(8, 256, 1\), wanted \(8, 256, 2\)"),
        ({"out": torch.zeros(1, 256).half()}, "out.dtype: got torch.float16, wanted torch.float32"),
        ({"out": torch.zeros(1, 1).expand(1, 256)}, r"out.stride\(\): got \(1, 0\), wanted rows that do not share"),
        ({"workspace": torch.zeros(8)}, "workspace.dtype: got torch.float32, wanted torch.uint8"),
        ({"topk_ids": torch.zeros(1, 2, dtype=torch.int32, device="meta")}, "topk_ids.device: got meta, wanted cpu"),
        ({"w2": torch.zeros(8, 256, 64, dtype=torch.uint8, device="meta")}, "w2.device: got meta, wanted cpu like x"),
    ),
)
def test_what_does_not_fit_is_named(change, message):
    arguments = {**moe_inputs(MOE_CASES[0], torch.float32), **keywords(MOE_CASES[0]), **change}
    with pytest.raises(ValueError, match=message):
        ops.moe_u4(**arguments)


def test_fake_implementations_and_schema_hold():
    case = MOE_CASES[1]
    inputs = tuple(moe_inputs(case, torch.float32).values())
    arguments = (*inputs, case.nibble, case.group, case.activation, "n_major")
    torch.library.opcheck(torch.ops.xpu_moe.moe_u4, arguments, test_utils=("test_schema", "test_faketensor"))
    with_out = (*arguments, torch.empty_like(inputs[0]))
    torch.library.opcheck(torch.ops.xpu_moe.moe_u4_out, with_out, test_utils=("test_schema", "test_faketensor"))


def test_an_unknown_layout_is_refused_with_the_reason():
    with pytest.raises(ops.NoBackend, match="layout 'sm90_mma': it reads n_major only"):
        ops.moe_u4(**moe_inputs(MOE_CASES[0], torch.float32), **keywords(MOE_CASES[0]), layout="sm90_mma")
