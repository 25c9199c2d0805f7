"""The halves of the Q/K norm under Triton's interpreter. Run by test_kernels.py in a process that has Triton."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.comm.test_qk_rms import EPS, inputs
from tests.ops.table import TOLERANCE, relative_error
from xpu_moe.cpu.qk_rms import reference
from xpu_moe.ops.contract import Case, select
from xpu_moe.triton import rms, toolchain
from xpu_moe.triton.rms import Apply, Partial

DTYPES = pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=("fp32", "bf16", "fp16"))
WIDTHS = pytest.mark.parametrize("q_size,kv_size", ((64, 32), (1, 1), (97, 33), (1536, 256), (48, 200)))


def norm(shards, q_weights, k_weights, q_size, kv_size, outs=None):
    """(q, k) of every rank by both halves, with a plain sum for the all-reduce; `outs` as the backend takes them."""
    parts = [torch.full((shard.shape[0], 2), float("nan")) for shard in shards]
    for shard, part in zip(shards, parts):
        Partial().run(shard, q_size=q_size, kv_size=kv_size, out=part)
    sums, made = sum(parts), []
    for rank, (shard, q_weight, k_weight) in enumerate(zip(shards, q_weights, k_weights)):
        tokens = shard.shape[0]
        new = (shard.new_full((tokens, size), float("nan")) for size in (q_size, kv_size))
        q, k = outs[rank] if outs else new
        Apply().run(
            shard, sums, q_weight, k_weight, q_size=q_size, kv_size=kv_size, eps=EPS, world_size=len(shards), q_out=q,
            k_out=k,
        )  # fmt: skip
        made.append((q, k))
    return made


def agrees(made, truth, dtype):
    return all(relative_error(a, b) < TOLERANCE[dtype] for ours, want in zip(made, truth) for a, b in zip(ours, want))


@WIDTHS
@DTYPES
def test_two_ranks_agree_with_float64(q_size, kv_size, dtype):
    given = inputs(2, 3, q_size, kv_size, dtype)
    assert agrees(norm(*given, q_size, kv_size), reference(*given, q_size, kv_size, EPS), dtype)


@DTYPES
def test_the_sums_are_float32_and_their_own(dtype):
    (qkv,), _, _ = inputs(1, 4, 97, 33, dtype)
    wide = torch.full((4, 5), float("nan"))
    Partial().run(qkv, q_size=97, kv_size=33, out=wide[:, 1:4:2])  # a column between them, and both sides, stay
    for column, part in ((1, qkv[:, :97]), (3, qkv[:, 97:130])):
        assert torch.allclose(wide[:, column].double(), part.double().square().sum(1), rtol=1e-6)
    assert wide[:, (0, 2, 4)].isnan().all()


@DTYPES
def test_in_place_among_strided_rows_nothing_else_changes(dtype):
    (qkv,), q_weights, k_weights = inputs(1, 4, 96, 32, dtype)
    truth = reference([qkv], q_weights, k_weights, 96, 32, EPS)
    wide = torch.full((4, 203), 7.0, dtype=dtype)
    packed = wide[:, 11:171]  # rows start at odd addresses
    packed.copy_(qkv)
    made = norm([packed], q_weights, k_weights, 96, 32, outs=[(packed[:, :96], packed[:, 96:128])])
    assert agrees(made, truth, dtype)
    assert torch.equal(packed[:, 128:], qkv[:, 128:])
    assert wide[:, :11].eq(7).all() and wide[:, 171:].eq(7).all()


def test_outputs_weights_and_sums_may_be_strided_and_a_zero_row_stays_zero():
    (qkv,), (q_weight,), (k_weight,) = inputs(1, 4, 32, 16, torch.float32)
    qkv[2] = 0
    truth = reference([qkv], [q_weight], [k_weight], 32, 16, EPS)
    outs = [(torch.full((4, 40), 7.0)[:, 3:35], torch.full((8, 16), 7.0)[::2])]
    apart = torch.stack((q_weight, q_weight * 0), 1)[:, 0]
    assert apart.stride() == (2,)
    made = norm([qkv], [apart], [k_weight], 32, 16, outs)
    assert agrees(made, truth, torch.float32)
    assert made[0][0][2].eq(0).all() and made[0][1].is_set_to(outs[0][1])


def test_a_row_wider_than_a_program_takes_several_turns(monkeypatch):
    monkeypatch.setattr(rms, "_WIDEST", 64)
    given = inputs(2, 2, 200, 65, torch.float32)
    assert rms.blocks(200, 65)["BLOCK_Q"] == rms.blocks(200, 65)["BLOCK_K"] == 64
    assert agrees(norm(*given, 200, 65), reference(*given, 200, 65, EPS), torch.float32)


def test_weights_of_another_dtype_and_no_rows_at_all():
    (qkv,), (q_weight,), (k_weight,) = inputs(1, 3, 64, 32, torch.bfloat16)
    truth = reference([qkv], [q_weight], [k_weight], 64, 32, EPS)
    assert agrees(norm([qkv], [q_weight.float()], [k_weight.float()], 64, 32), truth, torch.bfloat16)
    ((q, k),) = norm([qkv[:0]], [q_weight], [k_weight], 64, 32)
    assert q.shape == (0, 64) and k.shape == (0, 32)


def test_a_row_that_is_not_finite_leaves_the_others_alone():
    (qkv,), (q_weight,), (k_weight,) = inputs(1, 3, 64, 32, torch.float32)
    ((q, k),) = norm([qkv], [q_weight], [k_weight], 64, 32)
    broken = qkv.clone()
    broken[1, 5] = float("nan")
    ((bad_q, bad_k),) = norm([broken], [q_weight], [k_weight], 64, 32)
    assert bad_q[1].isnan().all() and torch.equal(bad_q[::2], q[::2]) and torch.equal(bad_k, k)


@pytest.mark.parametrize("op", ("qk_rms_partial", "qk_rms_apply"))
def test_a_card_is_served_by_it_before_plain_torch(op):
    case = Case(op, "cuda", "sm_90", "bfloat16", 4096, 4096, q_size=1536, kv_size=256)
    chosen = select(case)
    assert chosen.name == "triton_rms" and toolchain.triton_version() in chosen.reason
    assert select(case, "torch").name == "torch"


def test_the_unfused_norm_is_made_of_it():
    case = Case("allreduce_qk_rms", "cuda", "sm_90", "bfloat16", 4, 4, q_size=1536, kv_size=256, world_size=2, bytes=32)
    chosen = select(case, "composed")
    assert chosen.reason == "three steps: triton_rms, process_group, triton_rms"


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
