"""The router by the ESIMD source: the operator's semantics, ties and odd values included; and `up` fed by logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.esimd.kernels.cases import TOLERANCE, Shape, error, inputs, truth
from xpu_moe.cpu.route_sigmoid_topk import route
from xpu_moe.esimd.host import emulate

pytestmark = pytest.mark.slow
NAN, INF = float("nan"), float("inf")


def both(logits, bias, top_k, renormalize=True, scale=1.0):
    weights, ids = emulate.route_sigmoid_topk(logits, bias, top_k, renormalize=renormalize, scale=scale)
    wanted_weights, wanted_ids = route(logits, bias, top_k, renormalize, scale)
    return torch.from_numpy(weights), torch.from_numpy(ids), wanted_weights, wanted_ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (512, 16), (8, 8), (17, 3), (100, 10), (1, 1)])
def test_against_the_reference(experts, top_k, dtype):
    """Coarse logits: equal scores are everywhere, near-equal ones are not."""
    draw = torch.Generator().manual_seed(experts)
    logits = (torch.randint(-64, 65, (7, experts), generator=draw) / 16).to(dtype)
    for bias in (None, (torch.randint(-8, 9, (experts,), generator=draw) / 32).to(dtype)):
        for renormalize, scale in ((True, 1.0), (False, 2.5)):
            weights, ids, wanted_weights, wanted_ids = both(logits, bias, top_k, renormalize, scale)
            gap = torch.sigmoid(logits.double()) + (0 if bias is None else bias.double())
            same = torch.gather(gap, 1, ids.long()) - torch.gather(gap, 1, wanted_ids.long())
            assert same.abs().max() < 1e-6  # an id may differ only where float32 cannot tell the two apart
            if bias is None:
                assert torch.equal(ids, wanted_ids)
            assert torch.allclose(weights, wanted_weights, rtol=2e-6, atol=1e-9) or not torch.equal(ids, wanted_ids)


@pytest.mark.parametrize(
    ("row", "bias"),
    [
        ([1.0] * 40, None),
        ([NAN, 1.0, NAN, 2.0] + [-1.0] * 16, None),
        ([NAN] * 20, None),
        ([NAN] * 18 + [0.5, -3.0], None),
        ([-INF] * 20, None),
        ([-INF, INF, -INF, 3.0] + [NAN] * 16, None),
        ([0.0] * 20, [-INF] * 10 + [0.0] * 10),
        ([0.0] * 20, [NAN, INF, -INF] + [0.0] * 17),
        ([0.0, NAN] * 10, [-INF] * 20),
        ([-84.0, -83.0, -82.0, -86.0] + [-300.0] * 20, None),
        ([88.0, 89.0, 200.0, 17.0] + [0.0] * 20, None),
    ],
)
def test_ties_nan_and_infinities(row, bias):
    logits = torch.tensor([row], dtype=torch.float32)
    bias = None if bias is None else torch.tensor(bias)
    weights, ids, wanted_weights, wanted_ids = both(logits, bias, 8)
    assert torch.equal(ids, wanted_ids)
    # exp(-84) by exp2: the product with log2(e) alone rounds by 4e-6 of the result
    assert torch.allclose(weights, wanted_weights, rtol=2e-5, atol=1e-30)


@pytest.mark.parametrize("tokens", [1, 2, 4, 6])
@pytest.mark.parametrize("renormalize", [True, False])
def test_up_fed_by_logits_is_one_call_with_the_same_result(tokens, renormalize):
    shape = Shape("logits", 128, 128, hidden=512, experts=48, top_k=6, pool=48)
    arguments = inputs(shape, tokens, torch.float16)
    draw = torch.Generator().manual_seed(5)
    logits, bias = torch.randn(tokens, 48, generator=draw), torch.randn(48, generator=draw) * 0.1
    tensors = [arguments[n] for n in ("x", "w13", "w13_scale", "w2", "w2_scale")]
    got = emulate.moe_u4(
        *tensors, logits=logits, bias=bias, top_k=6, group_size=128, renormalize=renormalize, route_scale=1.5
    )
    weights, ids = emulate.route_sigmoid_topk(logits, bias, 6, renormalize=renormalize, scale=1.5)
    assert (got.topk_ids == ids).all() and (got.topk_weights == weights).all()
    apart = emulate.moe_u4(*tensors, weights, ids, group_size=128)
    assert (got.bits == apart.bits).all()
    routed = arguments | {"topk_weights": torch.from_numpy(weights), "topk_ids": torch.from_numpy(ids)}
    assert error(torch.from_numpy(got.output), truth(**routed, nibble="u4", group_size=128)) <= TOLERANCE[torch.float16]
    # the routing costs no weights: what is read is what the ids name
    assert got.traffic_ratio <= 1.05 if tokens <= 4 else True


def test_schedules_do_not_change_the_routing_of_up():
    shape = Shape("logits", 128, 128, hidden=256, experts=48, top_k=6, pool=48)
    arguments = inputs(shape, 4, torch.float16)
    logits = torch.randn(4, 48, generator=torch.Generator().manual_seed(1))
    tensors = [arguments[n] for n in ("x", "w13", "w13_scale", "w2", "w2_scale")]
    runs = [emulate.moe_u4(*tensors, logits=logits, top_k=6, group_size=128, seed=s).bits for s in (0, 7, 8)]
    assert all(np.array_equal(run, runs[0]) for run in runs)
