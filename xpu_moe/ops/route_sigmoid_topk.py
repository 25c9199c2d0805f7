"""`route_sigmoid_topk`: MiniMax's router. Scores are sigmoid(logits); the bias takes part in the choice only.

    choice  = top_k of sigmoid(logits) + bias, ties to the lowest expert id
    weights = sigmoid(logits)[choice], renormalised by their sum (+ 1e-20) where asked, times `scale`

Defined for every input: a NaN logit is never selected while another expert is left (it counts as -inf; a row with
fewer than top_k usable logits fills up with the lowest unused ids at weight 0); -inf has sigmoid 0 and takes part by
its bias; a row whose selected sigmoids are all 0 gets weights 0. Epsilon and formula: vLLM's fused_topk_bias.
"""

from __future__ import annotations

import torch

from xpu_moe import device
from xpu_moe.ops import checks
from xpu_moe.ops.contract import Case, Selection, select
from xpu_moe.ops.library import define

EPSILON = 1e-20


def case_of(logits: torch.Tensor, top_k: int) -> Case:
    kind = logits.device.type
    return Case(
        op="route_sigmoid_topk",
        device=kind,
        architecture=device.architecture(kind),
        dtype=checks.dtype_name(logits),
        tokens=logits.shape[0],
        min_tokens=logits.shape[0],
        num_experts=logits.shape[1],
        top_k=top_k,
    )


def selection(logits: torch.Tensor, bias: torch.Tensor | None, top_k: int, **_: object) -> Selection:
    """Which backend `route_sigmoid_topk` takes, and why."""
    return select(case_of(logits, top_k))


def check(logits: torch.Tensor, bias: torch.Tensor | None, top_k: int) -> None:
    checks.rank("logits", logits, 2)
    checks.dtype("logits", logits, torch.float32, torch.float16, torch.bfloat16)
    checks.whole("top_k", top_k)
    checks.require(1 <= top_k <= logits.shape[1], "top_k", top_k, f"1..{logits.shape[1]}, the number of experts")
    if bias is not None:
        checks.rank("bias", bias, 1)
        checks.shape("bias", bias, (logits.shape[1],))
        checks.dtype("bias", bias, torch.float32, torch.float16, torch.bfloat16)
        checks.same_device({"logits": logits, "bias": bias})
    checks.inference_only(logits=logits, bias=bias)


def check_weighing(renormalize: bool, scale: float) -> None:
    """Raise BadArgument unless the settings of the route weights are what they should be."""
    checks.flag("renormalize", renormalize)
    checks.finite("scale", scale)


def route_sigmoid_topk(
    logits: torch.Tensor, bias: torch.Tensor | None, top_k: int, *, renormalize: bool = True, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose `top_k` experts a token.

    logits [M, E] fp32 (fp16/bf16 accepted, computed in fp32), bias [E] or None. Returns (weights float32 [M, top_k],
    ids int32 [M, top_k]) in order of falling choice value. Raises BadArgument.
    """
    check(logits, bias, top_k)
    check_weighing(renormalize, scale)
    return torch.ops.xpu_moe.route_sigmoid_topk(logits, bias, top_k, renormalize, scale)


def _run(logits, bias, top_k, renormalize, scale):
    backend = select(case_of(logits, top_k)).backend
    return backend.run(logits, bias, top_k, renormalize=renormalize, scale=scale)


def _fake(logits, bias, top_k, renormalize, scale):
    shape = (logits.shape[0], top_k)
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32)


define(
    "route_sigmoid_topk(Tensor logits, Tensor? bias, int top_k, bool renormalize, float scale) -> (Tensor, Tensor)",
    _fake,
    _run,
)
