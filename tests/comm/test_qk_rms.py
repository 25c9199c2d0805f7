"""`allreduce_qk_rms` against the float64 truth over all ranks, and as one operator to torch.compile."""

from __future__ import annotations

import pytest
import torch

from tests.comm.ranks import run_ranks
from tests.ops.table import TOLERANCE, relative_error
from xpu_moe.comm import group as groups
from xpu_moe.cpu.qk_rms import reference
from xpu_moe.ops import checks, qk_rms

EPS = 1e-6


def inputs(world: int, tokens: int, q_size: int, kv_size: int, dtype: torch.dtype):
    """(qkv, q_weight, k_weight) of every rank."""
    draw = torch.Generator().manual_seed(world * 1000 + tokens)
    width = q_size + 2 * kv_size
    shards = [torch.randn(tokens, width, generator=draw).mul(3).to(dtype) for _ in range(world)]
    q_weights = [(torch.rand(q_size, generator=draw) + 0.5).to(dtype) for _ in range(world)]
    k_weights = [(torch.rand(kv_size, generator=draw) + 0.5).to(dtype) for _ in range(world)]
    return shards, q_weights, k_weights


def _rank_norms(communicator: groups.Communicator, tokens: int, q_size: int, kv_size: int, dtype: str):
    rank, world = communicator.rank, communicator.world_size
    shards, q_weights, k_weights = inputs(world, tokens, q_size, kv_size, getattr(torch, dtype))
    mine = (shards[rank], q_weights[rank], k_weights[rank], q_size, kv_size, EPS, communicator)
    taken = qk_rms.selection(*mine)
    q, k = qk_rms.allreduce_qk_rms(*mine)
    packed = shards[rank].clone()
    in_place = qk_rms.allreduce_qk_rms(packed, *mine[1:], inplace=True)
    same = torch.equal(in_place[0], q) and torch.equal(in_place[1], k)
    untouched = torch.equal(packed[:, q_size + kv_size :], shards[rank][:, q_size + kv_size :])
    return {"q": q, "k": k, "taken": taken.name, "same": same, "untouched": untouched}


@pytest.mark.slow
@pytest.mark.parametrize("world,dtype", [(2, "bfloat16"), (3, "float32"), (4, "float16")])
def test_every_rank_norms_over_the_whole_width(world, dtype):
    tokens, q_size, kv_size = 5, 96, 32
    results = run_ranks(world, _rank_norms, tokens, q_size, kv_size, dtype)
    truth = reference(*inputs(world, tokens, q_size, kv_size, getattr(torch, dtype)), q_size, kv_size, EPS)
    for got, (q, k) in zip(results, truth):
        assert got["taken"] == "composed"
        assert got["same"] and got["untouched"]
        assert relative_error(got["q"], q) < TOLERANCE[getattr(torch, dtype)]
        assert relative_error(got["k"], k) < TOLERANCE[getattr(torch, dtype)]


@pytest.mark.parametrize("tokens", [0, 1, 7])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_world_of_one_needs_no_process_group(tokens, dtype):
    shards, q_weights, k_weights = inputs(1, tokens, 64, 32, dtype)
    q, k = qk_rms.allreduce_qk_rms(shards[0], q_weights[0], k_weights[0], 64, 32, EPS, groups.SOLO)
    ((want_q, want_k),) = reference(shards, q_weights, k_weights, 64, 32, EPS)
    assert q.is_contiguous() and k.is_contiguous()
    assert relative_error(q, want_q) < TOLERANCE[dtype]
    assert relative_error(k, want_k) < TOLERANCE[dtype]


def test_strided_rows_and_a_zero_row():
    (qkv,), (q_weight,), (k_weight,) = inputs(1, 4, 32, 16, torch.float32)
    wide = torch.zeros(4, 100)
    wide[:, 10:74] = qkv
    wide[2] = 0
    strided = wide[:, 10:74]
    q, _ = qk_rms.allreduce_qk_rms(strided, q_weight, k_weight, 32, 16, EPS, groups.SOLO)
    ((want, _),) = reference([strided.contiguous()], [q_weight], [k_weight], 32, 16, EPS)
    assert relative_error(q, want) < 1e-5
    assert q[2].eq(0).all()


def test_partial_then_apply_is_the_whole():
    (qkv,), (q_weight,), (k_weight,) = inputs(1, 3, 64, 32, torch.bfloat16)
    sums = qk_rms.qk_rms_partial(qkv, 64, 32)
    assert sums.shape == (3, 2) and sums.dtype == torch.float32
    assert torch.allclose(sums[:, 1].double(), qkv[:, 64:96].double().square().sum(1), rtol=1e-5)
    two_steps = qk_rms.qk_rms_apply(qkv, sums, q_weight, k_weight, 64, 32, EPS, 1)
    one_step = qk_rms.allreduce_qk_rms(qkv, q_weight, k_weight, 64, 32, EPS, groups.SOLO)
    assert all(torch.equal(a, b) for a, b in zip(two_steps, one_step))


@pytest.mark.parametrize(
    "change,words",
    [
        ({"q_size": 0}, "q_size: got 0"),
        ({"kv_size": 200}, "qkv.shape[1]: got 128, wanted >= q_size + kv_size = 264"),
        ({"q_weight": torch.ones(63)}, "q_weight.shape: got (63,), wanted (64,)"),
        ({"k_weight": torch.ones(32, dtype=torch.float16)}, "k_weight.dtype"),
        ({"qkv": torch.ones(2, 128).t().contiguous().t()}, "qkv.stride(1)"),
        ({"qkv": torch.ones(2, 128, dtype=torch.int32)}, "qkv.dtype"),
    ],
)
def test_a_bad_argument_is_named(change, words):
    arguments = {
        "qkv": torch.ones(2, 128),
        "q_weight": torch.ones(64),
        "k_weight": torch.ones(32),
        "q_size": 64,
        "kv_size": 32,
    }
    arguments.update(change)
    with pytest.raises(checks.BadArgument) as caught:
        qk_rms.allreduce_qk_rms(**arguments, eps=EPS, communicator=groups.SOLO)
    assert words in str(caught.value)


def test_the_operators_pass_torch_opcheck():
    (qkv,), (q_weight,), (k_weight,) = inputs(1, 3, 64, 32, torch.float32)
    whole = (qkv, q_weight, k_weight, 64, 32, EPS, 1, "solo")
    torch.library.opcheck(torch.ops.xpu_moe.allreduce_qk_rms.default, whole)
    torch.library.opcheck(torch.ops.xpu_moe.allreduce_qk_rms_.default, whole)
    torch.library.opcheck(torch.ops.xpu_moe.qk_rms_partial.default, (qkv, 64, 32))
    steps = (qkv, torch.ones(3, 2), q_weight, k_weight, 64, 32, EPS, 1)
    torch.library.opcheck(torch.ops.xpu_moe.qk_rms_apply.default, steps)
    torch.library.opcheck(torch.ops.xpu_moe.qk_rms_apply_.default, steps)


def test_torch_compile_sees_one_operator():
    (qkv,), (q_weight,), (k_weight,) = inputs(1, 3, 64, 32, torch.float32)
    seen: list[str] = []

    def spy(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    def step(x):
        return torch.ops.xpu_moe.allreduce_qk_rms(x, q_weight, k_weight, 64, 32, EPS, 1, "solo")[0] + 1

    compiled = torch.compile(step, backend=spy, fullgraph=True)
    assert torch.equal(compiled(qkv), step(qkv))
    assert sum("xpu_moe" in name for name in seen) == 1
