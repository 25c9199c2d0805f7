"""`route_sigmoid_topk` on the CPU against float64, and every corner that its file defines."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_moe import ops
from xpu_moe.ops.checks import BadArgument
from xpu_moe.ops.route_sigmoid_topk import selection

NAN, INF = float("nan"), float("inf")


def naive(logits, bias, top_k, renormalize, scale):
    """One row of Python floats -> (weights, ids), from the operator's description alone."""
    sigmoid = [0.0 if math.isnan(v) or v == -INF else 1 / (1 + math.exp(-v)) if v > -700 else 0.0 for v in logits]
    order = sorted(range(len(logits)), key=lambda e: (math.isnan(logits[e]), -(sigmoid[e] + bias[e]), e)
                   if not math.isnan(logits[e]) else (True, 0.0, e))  # fmt: skip
    ids = order[:top_k]
    chosen = [sigmoid[e] for e in ids]
    total = sum(chosen) + 1e-20 if renormalize else 1.0
    return [scale * value / total for value in chosen], ids


@pytest.mark.slow
@given(
    experts=st.integers(1, 64), data=st.data(), renormalize=st.booleans(), scale=st.sampled_from((1.0, 2.5)),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_against_plain_python(experts, data, renormalize, scale):
    # quarter steps: sums of sigmoid and bias keep their order in float32, and exact ties are common
    step = st.integers(-12, 12).map(lambda n: n / 4)
    value = st.one_of(step, st.sampled_from((NAN, -INF, INF)))
    rows = data.draw(st.lists(st.lists(value, min_size=experts, max_size=experts), min_size=0, max_size=4))
    bias = data.draw(st.lists(st.integers(-8, 8).map(lambda n: n * 4.0), min_size=experts, max_size=experts))
    top_k = data.draw(st.integers(1, min(experts, 8)))
    logits = torch.tensor(rows, dtype=torch.float32).reshape(len(rows), experts)
    weights, ids = ops.route_sigmoid_topk(logits, torch.tensor(bias), top_k, renormalize=renormalize, scale=scale)
    assert weights.dtype == torch.float32 and ids.dtype == torch.int32
    for row, got_weights, got_ids in zip(rows, weights, ids):
        wanted_weights, wanted_ids = naive(row, bias, top_k, renormalize, scale)
        assert got_ids.tolist() == wanted_ids
        assert got_weights.tolist() == pytest.approx(wanted_weights, abs=1e-6)


def test_ties_go_to_the_lowest_id():
    _, ids = ops.route_sigmoid_topk(torch.zeros(1, 256), None, 8)
    assert ids.tolist() == [list(range(8))]


def test_the_bias_chooses_and_does_not_weigh():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    weights, ids = ops.route_sigmoid_topk(logits, torch.tensor([0.0, 0.0, 9.0]), 2, renormalize=False)
    assert ids.tolist() == [[2, 0]]
    assert weights[0].tolist() == pytest.approx(torch.sigmoid(logits)[0, [2, 0]].tolist(), abs=1e-7)


def test_nan_is_selected_last_and_weighs_nothing():
    weights, ids = ops.route_sigmoid_topk(torch.tensor([[NAN, 1.0, NAN, -INF]]), torch.tensor([9.0, 0.0, 9.0, -INF]), 3)
    assert ids.tolist() == [[1, 3, 0]]
    assert weights.tolist() == [[1.0, 0.0, 0.0]]


def test_a_bias_that_is_nan_counts_as_minus_infinity():
    weights, ids = ops.route_sigmoid_topk(torch.zeros(1, 4), torch.tensor([NAN, 0.0, NAN, 0.0]), 4)
    assert ids.tolist() == [[1, 3, 0, 2]]
    assert weights.tolist() == [[0.25] * 4]


def test_a_row_without_any_weight_gives_zeros_not_nan():
    weights, ids = ops.route_sigmoid_topk(torch.full((1, 4), -INF), None, 2)
    assert weights.tolist() == [[0.0, 0.0]] and ids.tolist() == [[0, 1]]


def test_the_backend_taken_is_told():
    assert selection(torch.zeros(1, 8), None, 2).name == "cpu_sort"


@pytest.mark.parametrize(
    ("logits", "bias", "top_k", "message"),
    (
        (None, None, 1, "logits: got NoneType, wanted a tensor of 2 dimensions"),
        (torch.zeros(1, 8, requires_grad=True), None, 1, "logits.requires_grad: got True, wanted False"),
        (torch.zeros(8), None, 1, r"logits.dim\(\): got 1, wanted 2"),
        (torch.zeros(1, 8), None, 9, "top_k: got 9, wanted 1..8"),
        (torch.zeros(1, 8), None, 0, "top_k: got 0"),
        (torch.zeros(1, 8), torch.zeros(7), 2, r"bias.shape: got \(7,\), wanted \(8,\)"),
        (torch.zeros(1, 8), torch.zeros(1, 8), 2, r"bias.dim\(\): got 2, wanted 1"),
        (torch.zeros(1, 8, dtype=torch.int32), None, 2, "logits.dtype: got torch.int32"),
    ),
)
def test_what_does_not_fit_is_named(logits, bias, top_k, message):
    with pytest.raises(BadArgument, match=message):
        ops.route_sigmoid_topk(logits, bias, top_k)


def test_schema_and_fake():
    arguments = (torch.randn(3, 16), torch.randn(16), 4, True, 1.0)
    torch.library.opcheck(
        torch.ops.xpu_moe.route_sigmoid_topk, arguments, test_utils=("test_schema", "test_faketensor")
    )
