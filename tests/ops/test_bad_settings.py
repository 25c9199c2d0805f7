"""Sparse tensors, settings that are no numbers and groups that are no groups: BadArgument, for every operator."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.ops.test_bad_input import CALLS, HIDDEN, TENSORS, TOKENS, prepared, quantised, refused, remembered
from xpu_moe import ops
from xpu_moe.comm import group as groups
from xpu_moe.ops import checks
from xpu_moe.ops.checks import BadArgument
from xpu_moe.ops.moe_fp8_tensor import Fp8TensorWeights
from xpu_moe.ops.qk_rms import allreduce_qk_rms, qk_rms_apply, qk_rms_partial
from xpu_moe.ops.route_and_quant_fp8 import Plan

NAN, INF = float("nan"), float("inf")
SPARSE = "got a sparse_coo tensor, wanted a dense \\(strided\\) one"
NUMBERS = ((NAN, "nan"), (INF, "inf"), (-INF, "-inf"), ("x", "'x'"), (None, "None"), ([1.0], r"\[1"))
FLAGS = ((None, "None"), ("x", "'x'"), (2, "2"), ([True], r"\[True"))
ONE = groups.Communicator("alone", 0, 1, "gloo")
QKV, SUMS, WEIGHT = torch.ones(2, 24), torch.ones(2, 2), torch.ones(8)


def sparse(dense: torch.Tensor) -> torch.Tensor:
    """A sparse tensor of the same shape, dtype and device."""
    return torch.sparse_coo_tensor(
        size=tuple(dense.shape), dtype=dense.dtype, device=dense.device, check_invariants=False
    )


def compressed(dense: torch.Tensor) -> torch.Tensor:
    """One that has no strides to ask for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's word that this layout is in beta
        return dense.to_sparse_csr()


def with_(arguments: tuple, place: int, value: object) -> tuple:
    return (*arguments[:place], value, *arguments[place + 1 :])


@pytest.mark.parametrize("name, argument", TENSORS)
def test_a_sparse_tensor_is_named(name, argument):
    refused(name, f"^{argument}: {SPARSE}", **{argument: sparse(CALLS[name][1]()[argument])})


@pytest.mark.parametrize("name", ("moe_u4", "moe_fp8_block", "moe_u4_routed", "moe_fp8_tensor"))
def test_a_sparse_out_or_workspace_is_named(name):
    refused(name, f"^out: {SPARSE}", out=sparse(torch.zeros(TOKENS, HIDDEN)))
    refused(name, f"^workspace: {SPARSE}", workspace=sparse(torch.zeros(8, dtype=torch.uint8)))


def test_a_sparse_tensor_is_named_where_several_travel_together():
    weights: Fp8TensorWeights = CALLS["moe_fp8_tensor"][1]()["weights"]
    for field in ("w13", "w13_scale", "w2", "a1_scale"):
        given = {**vars(weights), field: sparse(getattr(weights, field))}
        with pytest.raises(BadArgument, match=f"^{field}: {SPARSE}"):
            Fp8TensorWeights(**given)
    inputs = vars(prepared())
    for field in ("topk_weights", "topk_ids", "x_q", "x_scale"):
        with pytest.raises(BadArgument, match=f"^{field}: {SPARSE}"):
            type(prepared())(**{**inputs, field: sparse(inputs[field])})
    with pytest.raises(BadArgument, match="^scale_ue8m0: got 'x', wanted True or False"):
        type(prepared())(**{**inputs, "scale_ue8m0": "x"})


def test_a_sparse_tensor_is_named_by_the_norms_and_the_sum():
    norm = (QKV, WEIGHT, WEIGHT, 8, 8, 1e-6, ONE)
    add = (SUMS, SUMS, torch.ones(2), 1e-6, ONE)
    for call, arguments, names in (
        (allreduce_qk_rms, norm, ("qkv", "q_weight", "k_weight")), (ops.all_reduce, (SUMS, ONE), ("x",)),
        (ops.all_reduce_add_rms, add, ("x", "residual", "weight")), (qk_rms_partial, (QKV, 8, 8), ("qkv",)),
        (qk_rms_apply, (QKV, SUMS, WEIGHT, WEIGHT, 8, 8, 1e-6, 1), ("qkv", "sums")),
        (ops.route_sigmoid_topk, (QKV, torch.ones(24), 2), ("logits", "bias")),
    ):  # fmt: skip
        call(*arguments)
        for place, name in enumerate(names):
            with pytest.raises(BadArgument, match=f"^{name}: {SPARSE}"):
                call(*with_(arguments, place, sparse(arguments[place])))
    with pytest.raises(BadArgument, match="^x: got a sparse_csr tensor, wanted a dense"):
        ops.all_reduce(compressed(SUMS), ONE)


def test_a_plan_names_what_is_no_dense_tensor():
    given = quantised()
    plan = Plan(**given)
    del given["top_k"]
    for argument, value in given.items():
        with pytest.raises(BadArgument, match=f"^{argument}: {SPARSE}"):
            plan(**{**given, argument: sparse(value)})
        with pytest.raises(BadArgument, match=f"^{argument}: got list, wanted a tensor"):
            plan(**{**given, argument: [1.0]})
    with pytest.raises(BadArgument, match="^x: got a sparse_csr tensor"):
        plan(**{**given, "x": compressed(given["x"])})
    assert plan(**given) is plan.out
    with pytest.raises(BadArgument, match="^scale: got nan"):
        Plan(**quantised(), scale=NAN)


@pytest.mark.parametrize("name", ("route_and_quant_fp8", "prepare_inputs", "moe_u4_routed"))
def test_settings_of_the_routing_are_named(name):
    remembered(name)
    for wrong, shown in NUMBERS:
        refused(name, f"^scale: got {shown}.*, wanted a finite number$", scale=wrong)
    for wrong, shown in FLAGS:
        refused(name, f"^renormalize: got {shown}.*, wanted True or False$", renormalize=wrong)
        if name != "moe_u4_routed":
            refused(name, f"^scale_ue8m0: got {shown}.*, wanted True or False$", scale_ue8m0=wrong)
    if name == "moe_u4_routed":
        refused(name, "^layout: got 3, wanted the name of a layout", layout=3)


def test_settings_of_the_router_are_named():
    for wrong, shown in (*NUMBERS, (True, "True")):
        with pytest.raises(BadArgument, match=f"^scale: got {shown}.*, wanted a finite number$"):
            ops.route_sigmoid_topk(QKV, None, 2, scale=wrong)
    for wrong, shown in FLAGS:
        with pytest.raises(BadArgument, match=f"^renormalize: got {shown}.*, wanted True or False$"):
            ops.route_sigmoid_topk(QKV, None, 2, renormalize=wrong)
    negative, _ = ops.route_sigmoid_topk(QKV, None, 2, scale=-2)  # odd, but a number
    assert negative.tolist() == [[-1.0, -1.0]] * 2


def test_eps_and_sizes_of_the_norms_are_named():
    norm, apply_ = (QKV, WEIGHT, WEIGHT, 8, 8, 1e-6, ONE), (QKV, SUMS, WEIGHT, WEIGHT, 8, 8, 1e-6, 1)
    add = (SUMS, SUMS, torch.ones(2), 1e-6, ONE)
    for call, arguments, place in (
        (allreduce_qk_rms, norm, 5),
        (qk_rms_apply, apply_, 6),
        (ops.all_reduce_add_rms, add, 3),
    ):
        for wrong, shown in (*NUMBERS, (True, "True"), (-1.0, "-1.0")):
            with pytest.raises(BadArgument, match=f"^eps: got {shown}.*, wanted a finite number >= 0$"):
                call(*with_(arguments, place, wrong))
        assert torch.isfinite(call(*with_(arguments, place, 0))[0]).all()
    sizes = ("8", 8.0, True, None, 0, -8)
    for call, arguments, places in (
        (allreduce_qk_rms, norm, {"q_size": 3, "kv_size": 4}),
        (qk_rms_partial, (QKV, 8, 8), {"q_size": 1, "kv_size": 2}),
        (qk_rms_apply, apply_, {"q_size": 4, "kv_size": 5, "world_size": 7}),
    ):  # fmt: skip
        for name, place in places.items():
            for wrong in sizes:
                with pytest.raises(BadArgument, match=f"^{name}: got {wrong!r}, wanted an integer > 0$"):
                    call(*with_(arguments, place, wrong))


def test_what_is_no_communicator_is_named():
    wanted = r"wanted a Communicator \(of comm.init, or comm.adopt\(process_group\)\), or None for the default group"
    for wrong in ("grp", "", 0, object()):
        words = f"^communicator: got {type(wrong).__name__}, {wanted}$"
        for call in (
            lambda group: ops.all_reduce(SUMS, group),
            lambda group: ops.all_reduce_add_rms(SUMS, SUMS, torch.ones(2), 1e-6, group),
            lambda group: allreduce_qk_rms(QKV, WEIGHT, WEIGHT, 8, 8, 1e-6, group),
        ):
            with pytest.raises(BadArgument, match=words):
                call(wrong)
            call(None)


def test_what_fitted_dense_is_not_known_sparse():
    fitted, dense = checks.Fitted(), torch.zeros(2, 2)
    fitted.add((dense, None), "silu")
    assert fitted.knows((torch.ones(2, 2), None), "silu")
    assert not fitted.knows((sparse(dense), None), "silu")


def test_the_checks_leave_a_compiled_graph_whole():
    def layer(qkv: torch.Tensor, weight: torch.Tensor, eps: float, scale: float):
        q, k = allreduce_qk_rms(qkv, weight, weight, 8, 8, eps, ONE)
        normed, total = ops.all_reduce_add_rms(q, k, weight, eps, ONE)
        weights, ids = ops.route_sigmoid_topk(normed, None, 2, renormalize=True, scale=scale)
        routed = ops.route_and_quant_fp8(total, normed, None, 2, scale=scale, group_size=32)
        return normed, ops.all_reduce(total, ONE), weights, ids, *routed

    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
    for tokens, eps, scale in ((2, 1e-6, 1.0), (5, 1e-5, 2.5), (7, 1e-4, 1.5)):
        qkv = torch.randn(tokens, 24, generator=torch.Generator().manual_seed(tokens))
        for got, wanted in zip(compiled(qkv, WEIGHT, eps, scale), layer(qkv, WEIGHT, eps, scale), strict=True):
            assert torch.equal(got.float(), wanted.float())
