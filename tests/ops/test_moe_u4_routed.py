"""`moe_u4_routed` on the CPU: equal to the two operators one after the other, and to float64."""

from __future__ import annotations

import pytest
import torch

from tests.ops.table import MOE_CASES, TOLERANCE, moe_inputs, relative_error
from xpu_moe import ops
from xpu_moe.cpu.moe_u4_routed import reference
from xpu_moe.ops.checks import BadArgument
from xpu_moe.ops.moe_u4_routed import selection


def inputs(case, dtype, seed=0):
    given = moe_inputs(case, dtype, seed)
    experts = list(given.values())[:5]
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(case.tokens, case.experts, generator=draw)
    return experts, logits, torch.randn(case.experts, generator=draw)


def settings(case):
    return {"nibble": case.nibble, "group_size": case.group, "activation": case.activation}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", MOE_CASES, ids=str)
def test_against_float64_and_the_two_operators(case, dtype):
    experts, logits, bias = inputs(case, dtype)
    routing = {"renormalize": case.tokens % 2 == 0, "scale": 1.5}
    got = ops.moe_u4_routed(*experts, logits, bias, case.top_k, **routing, **settings(case))
    truth = reference(*experts, logits, bias, case.top_k, **routing, **settings(case))
    assert relative_error(got, truth) <= TOLERANCE[dtype]
    weights, ids = ops.route_sigmoid_topk(logits, bias, case.top_k, **routing)
    assert torch.equal(got, ops.moe_u4(*experts, weights, ids, **settings(case)))


def test_it_writes_into_out_and_says_which_backend_it_takes():
    case = MOE_CASES[0]
    experts, logits, _ = inputs(case, torch.float16)
    out = torch.full((case.tokens, case.hidden), float("nan"), dtype=torch.float16)
    returned = ops.moe_u4_routed(*experts, logits, None, case.top_k, out=out, **settings(case))
    assert returned is out and torch.equal(out, ops.moe_u4_routed(*experts, logits, None, case.top_k, **settings(case)))
    taken = selection(*experts, logits, None, case.top_k, **settings(case))
    assert taken.name == "cpu_grouped" and taken.case.op == "moe_u4_routed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(1, 7), "bias": None}, r"logits.shape: got \(1, 7\), wanted \(1, 8\)"),
        ({"top_k": 9}, "top_k: got 9, wanted 1..8"),
        ({"bias": torch.zeros(9)}, r"bias.shape: got \(9,\), wanted \(8,\)"),
        ({"group_size": 48}, "group_size: got 48"),
        ({"out": torch.zeros(2, 256, dtype=torch.float16)}, r"out.shape: got \(2, 256\)"),
    ],
)
def test_what_does_not_fit_is_an_error(change, message):
    case = MOE_CASES[0]
    experts, logits, bias = inputs(case, torch.float16)
    call = {"logits": logits, "bias": bias, "top_k": case.top_k, **settings(case)} | change
    with pytest.raises(BadArgument, match=message):
        ops.moe_u4_routed(*experts, **call)


def test_opcheck_holds_for_both_forms():
    case = MOE_CASES[0]
    experts, logits, bias = inputs(case, torch.float16)
    rest = (case.top_k, "u4", case.group, "silu", True, 1.0, "n_major")
    tests = ("test_schema", "test_faketensor")
    out = torch.empty(case.tokens, case.hidden, dtype=torch.float16)
    torch.library.opcheck(torch.ops.xpu_moe.moe_u4_routed.default, (*experts, logits, bias, *rest), test_utils=tests)
    torch.library.opcheck(
        torch.ops.xpu_moe.moe_u4_routed_out.default, (*experts, logits, bias, *rest, out), test_utils=tests
    )
