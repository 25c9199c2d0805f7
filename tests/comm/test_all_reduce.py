"""`all_reduce` in its two forms, and with the residual norm behind it."""

from __future__ import annotations

import pytest
import torch

from tests.comm.ranks import run_ranks
from tests.ops.table import TOLERANCE, relative_error
from xpu_moe.comm import group as groups
from xpu_moe.ops import checks
from xpu_moe.ops.all_reduce import all_reduce, selection
from xpu_moe.ops.all_reduce_add_rms import all_reduce_add_rms

SIZES = ((), (1,), (1, 2), (4093,), (3, 3072), (0, 8))


def _forms(rank: int, world: int, dtype: str):
    """Wrong cases found on this rank: none is right."""
    wrong = []
    for shape in SIZES:
        for step in (1, 2):  # changed inputs: a result must not be the first one's
            x = torch.full(shape, (rank + 1) * step).to(getattr(torch, dtype))
            before = x.clone()
            total = all_reduce(x)
            want = torch.full(shape, step * world * (world + 1) // 2).to(x.dtype)
            alias = x.numel() and total.data_ptr() == x.data_ptr()
            if not torch.equal(total, want) or not torch.equal(x, before) or alias:
                wrong.append(("clone", shape, step))
            if all_reduce(x, inplace=True) is not x or not torch.equal(x, want):
                wrong.append(("in place", shape, step))
    return wrong, selection(torch.zeros(4), groups.default()).name


@pytest.mark.slow
@pytest.mark.parametrize("world,dtype", [(2, "bfloat16"), (2, "float16"), (4, "float32"), (3, "int64")])
def test_both_forms_sum_exactly(world, dtype):
    for wrong, taken in run_ranks(world, _forms, dtype):
        assert wrong == []
        assert taken == "process_group"


def _add_rms(rank: int, world: int):
    draw = torch.Generator().manual_seed(7)
    parts = torch.randn(world, 4, 64, generator=draw)
    residual, weight = torch.randn(4, 64, generator=draw), torch.rand(64, generator=draw)
    normed, total = all_reduce_add_rms(parts[rank].clone(), residual, weight, 1e-6)
    truth = parts.double().sum(0) + residual.double()
    truth_normed = truth / (truth.square().mean(1, keepdim=True) + 1e-6).sqrt() * weight.double()
    return normed, relative_error(total, truth), relative_error(normed, truth_normed)


@pytest.mark.slow
def test_add_rms_agrees_with_float64_and_on_every_rank():
    results = run_ranks(2, _add_rms)
    for normed, of_total, of_normed in results:
        assert torch.equal(normed, results[0][0])
        assert of_total < TOLERANCE[torch.float32] and of_normed < TOLERANCE[torch.float32]


def test_a_world_of_one_copies():
    x = torch.arange(6.0)
    total = all_reduce(x, groups.SOLO)
    assert torch.equal(total, x) and total.data_ptr() != x.data_ptr()
    assert all_reduce(x, groups.SOLO, inplace=True) is x


def test_bad_tensors_are_named():
    with pytest.raises(checks.BadArgument, match=r"x: got strides \(1, 4\), wanted a contiguous"):
        all_reduce(torch.zeros(3, 4).t(), groups.SOLO)
    with pytest.raises(checks.BadArgument, match=r"x\.dtype: got torch\.bool"):
        all_reduce(torch.zeros(3, dtype=torch.bool), groups.SOLO)


def test_an_unknown_group_is_named():
    with pytest.raises(KeyError, match="group 'nobody' is unknown"):
        torch.ops.xpu_moe.all_reduce(torch.zeros(3), 2, "nobody")


def test_the_operators_pass_torch_opcheck():
    torch.library.opcheck(torch.ops.xpu_moe.all_reduce.default, (torch.ones(5), 1, "solo"))
    torch.library.opcheck(torch.ops.xpu_moe.all_reduce_.default, (torch.ones(5), 1, "solo"))
    arguments = (torch.ones(3, 8), torch.ones(3, 8), torch.ones(8), 1e-6, 1, "solo")
    torch.library.opcheck(torch.ops.xpu_moe.all_reduce_add_rms.default, arguments)
