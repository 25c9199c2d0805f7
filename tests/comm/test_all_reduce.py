"""`all_reduce` in its two forms, and with the residual norm behind it."""

from __future__ import annotations

import pytest
import torch

from tests.comm.ranks import run_ranks
from tests.ops.table import TOLERANCE, relative_error
from xpu_moe.comm import group as groups
from xpu_moe.comm.ops import ComposedAddRms
from xpu_moe.ops import checks
from xpu_moe.ops.all_reduce import all_reduce, selection
from xpu_moe.ops.all_reduce_add_rms import all_reduce_add_rms

SIZES = ((), (1,), (1, 2), (4093,), (3, 3072), (0, 8))


def _forms(communicator: groups.Communicator, dtype: str):
    """Wrong cases found on this rank: none is right."""
    rank, world = communicator.rank, communicator.world_size
    wrong = []
    for shape in SIZES:
        for step in (1, 2):  # changed inputs: a result must not be the first one's
            x = torch.full(shape, (rank + 1) * step).to(getattr(torch, dtype))
            before = x.clone()
            total = all_reduce(x, communicator)
            want = torch.full(shape, step * world * (world + 1) // 2).to(x.dtype)
            alias = x.numel() and total.data_ptr() == x.data_ptr()
            if not torch.equal(total, want) or not torch.equal(x, before) or alias:
                wrong.append(("clone", shape, step))
            if all_reduce(x, communicator, inplace=True) is not x or not torch.equal(x, want):
                wrong.append(("in place", shape, step))
    return wrong, selection(torch.zeros(4), communicator).name


@pytest.mark.slow
@pytest.mark.parametrize("world,dtype", [(2, "bfloat16"), (2, "float16"), (4, "float32"), (3, "int64")])
def test_both_forms_sum_exactly(world, dtype):
    for wrong, taken in run_ranks(world, _forms, dtype):
        assert wrong == []
        assert taken == "process_group"


def _add_rms(communicator: groups.Communicator):
    rank, world = communicator.rank, communicator.world_size
    draw = torch.Generator().manual_seed(7)
    parts = torch.randn(world, 4, 64, generator=draw)
    residual, weight = torch.randn(4, 64, generator=draw), torch.rand(64, generator=draw)
    parts[:, 1], residual[1] = parts[:, 1] * 1e-3, residual[1] * 1e-3  # a row for which eps matters
    normed, total = all_reduce_add_rms(parts[rank].clone(), residual, weight, 1e-6, communicator)
    truth = parts.double().sum(0) + residual.double()
    truth_normed = truth / (truth.square().mean(1, keepdim=True) + 1e-6).sqrt() * weight.double()
    return normed, relative_error(total, truth), relative_error(normed, truth_normed)


@pytest.mark.slow
def test_add_rms_agrees_with_float64_and_on_every_rank():
    results = run_ranks(2, _add_rms)
    for normed, of_total, of_normed in results:
        assert torch.equal(normed, results[0][0])
        assert of_total < TOLERANCE[torch.float32] and of_normed < TOLERANCE[torch.float32]


@pytest.mark.parametrize("weight_dtype", (torch.bfloat16, torch.float32), ids=str)
def test_the_composed_add_rms_norms_what_it_stores_and_may_overwrite_the_residual(weight_dtype):
    """Weights of x's dtype go through torch's norm, others through plain arithmetic: the same values."""
    draw = torch.Generator().manual_seed(3)
    x, residual = torch.randn(2, 5, 96, generator=draw).bfloat16()
    weight = (torch.rand(96, generator=draw) + 0.5).bfloat16().to(weight_dtype)
    total, kept = (x.float() + residual.float()).bfloat16(), residual.clone()
    wanted = total.double() / (total.double().square().mean(1, keepdim=True) + 1e-6).sqrt() * weight.double()
    normed = torch.empty_like(x)
    ComposedAddRms().run(
        x, kept, weight, eps=1e-6, world_size=1, group="solo", normed_out=normed, residual_out=kept
    )  # fmt: skip
    assert torch.equal(kept, total)
    assert relative_error(normed, wanted) < TOLERANCE[torch.bfloat16]


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


def _late(communicator: groups.Communicator):
    """Rank 0 waits for a rank that does not come."""
    import datetime
    from dataclasses import replace

    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    if communicator.rank:
        store.wait(["waited"], datetime.timedelta(seconds=60))  # there, and in no collective
        return ""
    try:
        replace(communicator, timeout_s=0.5).sum_inplace(torch.ones(4))
    except groups.CollectiveTimeout as error:
        return str(error)
    finally:
        store.set("waited", "yes")
    return "no timeout"


@pytest.mark.slow
def test_a_collective_is_bounded_by_its_timeout():
    from tests.comm.ranks import run_alone

    says = run_alone(2, _late)[0]
    assert says.startswith("all_reduce on group") and "rank 0 waited 0.5 s" in says, says


def test_who_is_who_has_to_be_said(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="rank, world_size: got none, wanted both, or torchrun's"):
        groups.init("cpu")
    with pytest.raises(ValueError, match="kind: got 'tpu', wanted one of xpu, cuda, cpu"):
        groups.backend_for("tpu")
    if not torch.distributed.is_backend_available("xccl"):
        with pytest.raises(groups.NoCollectives, match="looked for: xccl, ccl"):
            groups.backend_for("xpu")


def test_ranks_that_never_meet_end_in_time(tmp_path):
    with pytest.raises(groups.CollectiveTimeout, match="rank 0 of 2 did not meet the others"):
        groups.init("cpu", 0, 2, address=f"file://{tmp_path / 'store'}", timeout_s=1)


def test_a_guard_ends_a_block_that_never_does():
    import subprocess
    import sys

    code = "import time\nfrom xpu_moe.comm.guard import bounded\nwith bounded(0.3, 'this'):\n    time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "this is given 0.3 s" in done.stderr and "line 4" in done.stderr
    harmless = code.replace("time.sleep(60)", "pass").replace("0.3", "1") + "\ntime.sleep(1.5)"
    assert subprocess.run([sys.executable, "-c", harmless], capture_output=True, timeout=30).returncode == 0
