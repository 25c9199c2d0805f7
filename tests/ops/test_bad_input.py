"""Bad input of every operator: BadArgument names the argument, what was got and what was wanted."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch

from tests.ops.table import MoeCase, moe_inputs
from xpu_moe import ops
from xpu_moe.comm import group as groups
from xpu_moe.ops.checks import BadArgument
from xpu_moe.ops.moe_fp8_tensor import Fp8TensorWeights, moe_fp8_tensor
from xpu_moe.ops.prepared import PreparedInputs
from xpu_moe.ops.qk_rms import allreduce_qk_rms, qk_rms_apply, qk_rms_partial
from xpu_moe.ops.route_and_quant_fp8 import Plan, prepare_inputs, route_and_quant_fp8

TOKENS, EXPERTS, TOP_K, HIDDEN, INTER = 3, 2, 2, 256, 128
E4M3 = torch.float8_e4m3fn


def codes(*shape: int) -> torch.Tensor:
    return torch.full(shape, 0x38, dtype=torch.uint8).view(E4M3)


def u4() -> dict:
    case = MoeCase(tokens=TOKENS, experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, inter=INTER, group=64)
    return {**moe_inputs(case, torch.float32), "nibble": "u4", "group_size": 64}


def block() -> dict:
    return {
        "x": torch.ones(TOKENS, HIDDEN), "w13": codes(EXPERTS, 2 * INTER, HIDDEN),
        "w13_scale": torch.ones(EXPERTS, 2, 2), "w2": codes(EXPERTS, HIDDEN, INTER),
        "w2_scale": torch.ones(EXPERTS, 2, 1), "topk_weights": torch.ones(TOKENS, TOP_K),
        "topk_ids": torch.zeros(TOKENS, TOP_K, dtype=torch.int32),
    }  # fmt: skip


def tensor_scaled() -> dict:
    scales = (torch.ones(EXPERTS), torch.ones(EXPERTS), torch.ones(()), torch.ones(()))
    weights = Fp8TensorWeights(
        codes(EXPERTS, 2 * INTER, HIDDEN), scales[0], codes(EXPERTS, HIDDEN, INTER), *scales[1:], "silu"
    )
    routes = {"topk_weights": torch.ones(TOKENS, TOP_K), "topk_ids": torch.zeros(TOKENS, TOP_K, dtype=torch.int32)}
    return {"x": torch.ones(TOKENS, HIDDEN), "weights": weights, **routes}


def routed() -> dict:
    given = {name: value for name, value in u4().items() if not name.startswith("topk")}
    return {**given, "logits": torch.eye(TOKENS, EXPERTS), "bias": torch.zeros(EXPERTS), "top_k": TOP_K}


def quantised() -> dict:
    return {
        "x": torch.ones(TOKENS, HIDDEN),
        "logits": torch.eye(TOKENS, EXPERTS),
        "bias": torch.zeros(EXPERTS),
        "top_k": TOP_K,
    }


def prepared() -> PreparedInputs:
    return prepare_inputs(**quantised())


CALLS = {
    "moe_u4": (ops.moe_u4, u4), "moe_fp8_block": (ops.moe_fp8_block, block),
    "moe_u4_routed": (ops.moe_u4_routed, routed),
    "moe_fp8_tensor": (moe_fp8_tensor, tensor_scaled), "prepare_inputs": (prepare_inputs, quantised),
    "route_and_quant_fp8": (route_and_quant_fp8, quantised),
}  # fmt: skip
TENSORS = [
    (name, argument)
    for name, (_, arguments) in CALLS.items()
    for argument, value in arguments().items()
    if isinstance(value, torch.Tensor)
]
WRITERS = ("moe_u4", "moe_fp8_block", "moe_u4_routed", "moe_fp8_tensor")


@cache
def remembered(name: str) -> None:
    """A good call, after which one of such shapes is known."""
    call, arguments = CALLS[name]
    call(**arguments())


def refused(name: str, words: str, **changes) -> None:
    """The call is refused before a good one of the same shapes, and after it."""
    call, arguments = CALLS[name]
    for _ in range(2):
        with pytest.raises(BadArgument, match=words):
            call(**{**arguments(), **changes})
        remembered(name)


@pytest.mark.parametrize("name, argument", TENSORS)
def test_what_is_no_tensor_is_named(name, argument):
    for wrong in ([1.0], 7) if argument == "bias" else (None, [1.0], 7):
        both = name == "moe_fp8_block" and argument.startswith("topk") and wrong is None
        words = (
            "topk_weights, topk_ids: got left out" if both else f"^{argument}: got {type(wrong).__name__}, wanted a t"
        )
        refused(name, words, **{argument: wrong})
    refused(name, rf"^{argument}.dim\(\): got 0, wanted", **{argument: torch.zeros(())})


@pytest.mark.parametrize("name, argument", [pair for pair in TENSORS if pair[1] not in ("w13", "w2", "topk_ids")])
def test_what_autograd_watches_is_refused_while_it_watches(name, argument):
    call, arguments = CALLS[name]
    given = arguments()
    given[argument].requires_grad_()
    with torch.no_grad():
        call(**given)  # remembered from here on
    refused(name, f"^{argument}.requires_grad: got True, wanted False", **{argument: given[argument]})


@pytest.mark.parametrize("name", WRITERS)
def test_an_out_that_does_not_fit_is_refused(name):
    refused(name, "^out: got list, wanted a tensor of 2", out=[1.0])
    for overlapping in (
        torch.zeros(TOKENS + HIDDEN).as_strided((TOKENS, HIDDEN), (1, 1)),
        torch.zeros(1, HIDDEN).expand(TOKENS, HIDDEN), torch.zeros(TOKENS, 1).expand(TOKENS, HIDDEN),
        torch.zeros(TOKENS * HIDDEN).as_strided((TOKENS, HIDDEN), (HIDDEN - 1, 1)),
    ):  # fmt: skip
        refused(name, r"^out.stride\(\): got .* wanted rows that do not share memory", out=overlapping)
    refused(name, r"^out.stride\(\): got \(1, 3\), wanted .* adjacent", out=torch.zeros(HIDDEN, TOKENS).t())
    refused(name, "^out.requires_grad: got True", out=torch.zeros(TOKENS, HIDDEN, requires_grad=True))
    refused(name, r"^out.shape: got \(3, 8\)", out=torch.zeros(TOKENS, 8))
    call, arguments = CALLS[name]
    wide = torch.zeros(TOKENS, 2 * HIDDEN)[:, :HIDDEN]  # rows apart are good
    assert torch.equal(call(**arguments(), out=wide), call(**arguments()))


@pytest.mark.parametrize("name", WRITERS)
def test_a_workspace_that_does_not_fit_is_refused(name):
    refused(name, "^workspace: got list, wanted a tensor of 1", workspace=[1])
    refused(name, "^workspace.dtype: got torch.float32, wanted torch.uint8", workspace=torch.zeros(8))
    refused(name, r"^workspace.dim\(\): got 2, wanted 1", workspace=torch.zeros(8, 8, dtype=torch.uint8))
    refused(name, r"^workspace.stride\(\): got \(2,\)", workspace=torch.zeros(8, dtype=torch.uint8)[::2])


@pytest.mark.parametrize("name", ("moe_u4", "moe_u4_routed", "moe_fp8_block"))
def test_names_and_sizes_that_do_not_fit_are_refused(name):
    for wrong in ("gelu", ["silu"], None):
        refused(name, r"^activation: got .*(gelu|silu|None).* wanted one of silu, relu2", activation=wrong)
    if name == "moe_fp8_block":
        return
    refused(name, r"^nibble: got \['u4'\], wanted u4 or s4", nibble=["u4"])
    refused(name, "^group_size: got 64.0, wanted an integer", group_size=64.0)
    refused(name, r"^group_size: got \[64\], wanted an integer", group_size=[64])


@pytest.mark.parametrize("name", ("moe_u4", "moe_fp8_block"))
def test_no_size_is_zero(name):
    given = CALLS[name][1]()
    nothing = {"x": given["x"][:, :0], "w13": given["w13"][..., :0], "w13_scale": given["w13_scale"][..., :0],
               "w2": given["w2"][:, :0], "w2_scale": given["w2_scale"][:, :0]}  # fmt: skip
    refused(name, "^hidden_size: got 0, wanted a multiple of", **nothing)
    nothing = {"w13": given["w13"][:, :0], "w13_scale": given["w13_scale"][:, :0], "w2": given["w2"][..., :0],
               "w2_scale": given["w2_scale"][..., :0]}  # fmt: skip
    refused(name, "^intermediate_size: got 0, wanted a multiple of", **nothing)
    refused(name, "^layout: got ", layout=["n_major"])


def test_prepared_inputs_are_checked_like_plain_ones():
    weights = {name: value for name, value in block().items() if name.startswith("w")}
    inputs = prepared()
    for wrong in (None, [1.0], 7):
        with pytest.raises(BadArgument, match=f"^w2: got {type(wrong).__name__}"):
            ops.moe_fp8_block(inputs, **{**weights, "w2": wrong})
    for wrong in (torch.zeros(()), torch.zeros(3)):
        with pytest.raises(BadArgument, match=r"^w2.dim\(\): got \d, wanted 3"):
            ops.moe_fp8_block(inputs, **{**weights, "w2": wrong})
    with pytest.raises(BadArgument, match="^out.dtype: got torch.float32, wanted torch.bfloat16"):
        ops.moe_fp8_block(inputs, **weights, out=torch.zeros(TOKENS, HIDDEN))
    watched = dataclasses.replace(inputs, topk_weights=inputs.topk_weights.clone().requires_grad_())
    with pytest.raises(BadArgument, match="^topk_weights.requires_grad"):
        ops.moe_fp8_block(watched, **weights)
    for field in ("topk_weights", "topk_ids", "x_q", "x_scale"):
        with pytest.raises(BadArgument, match=f"^{field}: got list"):
            dataclasses.replace(inputs, **{field: [1.0]})
    with pytest.raises(BadArgument, match="^hidden_size: got 256.0, wanted an integer"):
        dataclasses.replace(inputs, hidden_size=256.0)
    with pytest.raises(BadArgument, match=r"^scale_layout: got \['row_major'\]"):
        dataclasses.replace(inputs, scale_layout=["row_major"])


def test_options_of_the_quantising_router_are_named():
    name = "route_and_quant_fp8"
    refused(name, "^top_k: got 2.0, wanted an integer", top_k=2.0)
    refused(name, "^group_size: got 128.0, wanted an integer", group_size=128.0)
    refused(name, "^padded_hidden_size: got 256.0, wanted an integer", padded_hidden_size=256.0)
    refused(name, r"^scale_layout: got \['row_major'\]", scale_layout=["row_major"])
    refused(name, "^out: got list, wanted Routed", out=[1.0])
    made = route_and_quant_fp8(**quantised())
    refused(name, "^out.x_q: got list, wanted a tensor", out=made._replace(x_q=[1.0]))
    refused(name, r"^out.x_q.stride\(\): got \(0, 1\)", out=made._replace(x_q=codes(1, HIDDEN).expand(TOKENS, HIDDEN)))
    turned = torch.zeros(HIDDEN, TOKENS).to(E4M3).t()
    refused(name, r"^out.x_q.stride\(1\): got 3, wanted 1", out=made._replace(x_q=turned))
    shared = torch.zeros(TOKENS + 2).as_strided((TOKENS, 2), (1, 1))
    refused(name, r"^out.x_scale.stride\(\): got \(1, 1\)", out=made._replace(x_scale=shared))


def test_a_plan_refuses_what_autograd_watches():
    given = quantised()
    plan = Plan(**given)
    del given["top_k"]
    plan(**given)
    for argument in given:
        watched = given[argument].clone().requires_grad_()
        with pytest.raises(BadArgument, match=f"^{argument}.requires_grad"):
            plan(**{**given, argument: watched})
        with torch.no_grad():
            plan(**{**given, argument: watched})
    with pytest.raises(BadArgument, match="as planned"):
        plan(**{**given, "x": torch.ones(TOKENS, 2 * HIDDEN)[:, :HIDDEN]})


def test_weights_of_a_layer_are_checked_when_it_is_made():
    weights = tensor_scaled()["weights"]
    for wrong, words in (
        ({"activation": "gelu"}, "^activation: got 'gelu'"), ({"w13": None}, "^w13: got NoneType"),
        ({"w2": codes(3)}, r"^w2.dim\(\): got 1"), ({"a1_scale": 1.0}, "^a1_scale: got float, wanted a tensor"),
    ):  # fmt: skip
        with pytest.raises(BadArgument, match=words):
            dataclasses.replace(weights, **wrong)
    refused("moe_fp8_tensor", "^weights: got NoneType, wanted Fp8TensorWeights", weights=None)
    scaled = dataclasses.replace(weights, a1_scale=torch.ones((), requires_grad=True))
    refused("moe_fp8_tensor", "^a1_scale.requires_grad", weights=scaled)
    refused("moe_fp8_tensor", "^topk_ids.dtype: got torch.float32", topk_ids=torch.zeros(TOKENS, TOP_K))


def test_the_norms_and_the_sum_refuse_what_autograd_watches():
    qkv, sums, q, k, x = torch.ones(2, 24), torch.ones(2, 2), torch.ones(8), torch.ones(8), torch.ones(2, 8)
    one = groups.Communicator("alone", 0, 1, "gloo")

    def watched(value: torch.Tensor) -> torch.Tensor:
        return value.clone().requires_grad_()

    for call, name in (
        (lambda: qk_rms_partial(watched(qkv), 8, 8), "qkv"),
        (lambda: qk_rms_apply(qkv, watched(sums), q, k, 8, 8, 1e-6, 1), "sums"),
        (lambda: allreduce_qk_rms(qkv, q, watched(k), 8, 8, 1e-6, one), "k_weight"),
        (lambda: ops.all_reduce(watched(x), one), "x"),
        (lambda: ops.all_reduce(watched(x), one, inplace=True), "x"),
        (lambda: ops.all_reduce_add_rms(x, watched(x), q, 1e-6, one), "residual"),
        (lambda: ops.route_sigmoid_topk(x, watched(q), 2), "bias"),
    ):
        with pytest.raises(BadArgument, match=f"^{name}.requires_grad: got True"):
            call()
        with torch.inference_mode():
            call()
