"""`moe_fp8_block`: a mixture-of-experts layer on e4m3 weights that carry one float32 scale for 128 x 128.

    out[m] = sum over k of topk_weights[m, k] * W2[e] @ act(W13[e] @ x[m]),   e = topk_ids[m, k]

x comes prepared (`PreparedInputs`: e4m3 with a scale for 128 values, and the routes), or plain with its routes. The
intermediate is kept in 16 bits or better: it is not quantised again, unless the backend's reason says so.

One semantics for every backend, as in `moe_u4`: float32 accumulation; a route out of range raises on the CPU and has
weight 0 on a device, its weights never read; an expert listed twice counts twice; M = 0 gives an empty output.
"""

from __future__ import annotations

import torch

from xpu_moe import device
from xpu_moe.env import read
from xpu_moe.ops import checks
from xpu_moe.ops.activation import ACTIVATIONS, w13_rows
from xpu_moe.ops.contract import Case, Selection, select
from xpu_moe.ops.library import define
from xpu_moe.ops.moe_u4 import check_ids
from xpu_moe.ops.prepared import PreparedInputs

BLOCK = 128
_fitted = checks.Fitted()
_PLAIN = (torch.float16, torch.bfloat16, torch.float32)


def case_of(
    x: torch.Tensor, prepared: bool, w13: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor,
    topk_ids: torch.Tensor, activation: str, layout: str = "n_major",
) -> Case:  # fmt: skip
    """The `Case` of a call, from its tensors; `dtype` is the output's (bfloat16 for prepared inputs)."""
    kind = x.device.type
    return Case(
        op="moe_fp8_block",
        device=kind,
        architecture=device.architecture(kind),
        dtype="bfloat16" if prepared else checks.dtype_name(x),
        tokens=x.shape[0],
        min_tokens=x.shape[0],
        hidden_size=x.shape[1],
        intermediate_size=w2.shape[2],
        num_experts=w13.shape[0],
        top_k=topk_ids.shape[1],
        group_size=BLOCK,
        activation=activation,
        scheme="fp8_block",
        layout=layout,
        prepared=prepared,
        weights_dtype=checks.dtype_name(topk_weights),
    )


def check(
    x: torch.Tensor, x_scale: torch.Tensor | None, w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor,
    w2_scale: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, activation: str,
) -> bool:  # fmt: skip
    """Raise BadArgument unless the arguments fit together. Whether such a call is known, hence needs no dispatcher."""
    tensors = (x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids)
    if _fitted.knows(tensors, activation):
        return True
    _check(*tensors, activation)
    _fitted.add(tensors, activation)
    return False


def _check(x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, activation: str) -> None:
    checks.ranks(
        x=(x, 2), w13=(w13, 3), w13_scale=(w13_scale, 3), w2=(w2, 3), w2_scale=(w2_scale, 3),
        topk_weights=(topk_weights, 2), topk_ids=(topk_ids, 2),
    )  # fmt: skip
    checks.one_of("activation", activation, ACTIVATIONS)
    checks.inference_only(
        x=x, x_scale=x_scale, w13=w13, w13_scale=w13_scale, w2=w2, w2_scale=w2_scale, topk_weights=topk_weights
    )
    (tokens, hidden), experts, inter = x.shape, w13.shape[0], w2.shape[2]
    rows = w13_rows(activation, inter)
    checks.dtype("w13", w13, torch.float8_e4m3fn)
    checks.dtype("w2", w2, torch.float8_e4m3fn)
    checks.dtype("w13_scale", w13_scale, torch.float32)
    checks.dtype("w2_scale", w2_scale, torch.float32)
    checks.dtype("topk_weights", topk_weights, *_PLAIN)
    checks.dtype("topk_ids", topk_ids, torch.int32, torch.int64)
    for name, size in (("hidden_size", hidden), ("intermediate_size", inter)):
        checks.multiple(name, size, BLOCK, f"the scale block {BLOCK} (pad the weights)")
    checks.shape("w13", w13, (experts, rows, hidden))
    checks.shape("w13_scale", w13_scale, (experts, rows // BLOCK, hidden // BLOCK))
    checks.shape("w2", w2, (experts, hidden, inter))
    checks.shape("w2_scale", w2_scale, (experts, hidden // BLOCK, inter // BLOCK))
    checks.require(topk_ids.shape[0] == tokens, "topk_ids.shape[0]", topk_ids.shape[0], f"{tokens}, the rows of x")
    checks.shape("topk_weights", topk_weights, tuple(topk_ids.shape))
    if x_scale is None:
        checks.dtype("x", x, *_PLAIN)
    else:
        checks.dtype("x", x, torch.float8_e4m3fn)
        checks.dtype("x_scale", x_scale, torch.float32)
        checks.shape("x_scale", x_scale, (tokens, hidden // BLOCK))
        checks.same_device({"x": x, "x_scale": x_scale})
    checks.same_device(
        {"x": x, "w13": w13, "w13_scale": w13_scale, "w2": w2, "w2_scale": w2_scale, "topk_weights": topk_weights,
         "topk_ids": topk_ids}
    )  # fmt: skip


def _inputs(x, topk_weights, topk_ids, w2):
    """(x, x_scale, topk_weights, topk_ids) of prepared or plain inputs."""
    if isinstance(x, PreparedInputs):
        checks.require(topk_weights is None and topk_ids is None, "topk_weights, topk_ids", "given",
                       "left out: prepared inputs hold them")  # fmt: skip
        if not isinstance(w2, torch.Tensor) or w2.dim() != 3:
            checks.rank("w2", w2, 3)
        hidden = w2.shape[1]
        if x.hidden_size != hidden or x.x_q.shape[1] != hidden:
            x.require(hidden_size=hidden)
        return x.x_q, x.x_scale, x.topk_weights, x.topk_ids
    checks.require(topk_weights is not None and topk_ids is not None, "topk_weights, topk_ids", "left out",
                   "both, where x is not PreparedInputs")  # fmt: skip
    return x, None, topk_weights, topk_ids


def selection(x, w13, w13_scale, w2, w2_scale, topk_weights=None, topk_ids=None, *, activation="silu",
              layout="n_major", **_: object) -> Selection:  # fmt: skip
    """Which backend `moe_fp8_block` takes for these arguments, and why."""
    tensor, scale, weights, ids = _inputs(x, topk_weights, topk_ids, w2)
    return select(case_of(tensor, scale is not None, w13, w2, weights, ids, activation, layout))


def moe_fp8_block(
    x: PreparedInputs | torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor | None = None,
    topk_ids: torch.Tensor | None = None,
    *,
    activation: str = "silu",
    layout: str = "n_major",
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """One MoE layer on block-scaled FP8 weights.

    x: PreparedInputs, or fp16/bf16/fp32 [M, H] with topk_weights and topk_ids [M, top_k]; w13 e4m3 [E, 2I, H] (gate
    rows, then up; I rows where the activation is not gated), w13_scale float32 [E, 2I/128, H/128]; w2 e4m3 [E, H, I],
    w2_scale [E, H/128, I/128]. Returns [M, H], bfloat16 for prepared inputs, else x's dtype; written into `out` where
    given. Prepared inputs whose (padded) hidden size is not that of the weights are an error.

    Raises BadArgument for arguments that do not fit, NoBackend when none serves the case.
    """
    tensor, scale, weights, ids = _inputs(x, topk_weights, topk_ids, w2)
    known = check(tensor, scale, w13, w13_scale, w2, w2_scale, weights, ids, activation)
    if type(layout) is not str:
        raise checks.BadArgument(f"layout: got {layout!r}, wanted the name of a layout")
    if workspace is not None:
        checks.workspace(workspace, tensor)
    arguments = (tensor, scale, w13, w13_scale, w2, w2_scale, weights, ids, activation, layout)
    eager = known or checks.plain(tensor)
    if out is None:
        return _run(*arguments, workspace) if eager else torch.ops.xpu_moe.moe_fp8_block(*arguments, workspace)
    checks.output(out, tensor, torch.bfloat16 if scale is not None else None)
    (_run_out if eager else torch.ops.xpu_moe.moe_fp8_block_out)(*arguments, out, workspace)
    return out


def _run_out(
    x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, activation, layout, out, workspace=None
) -> None:
    if x.device.type == "cpu" or read.flag("XPU_MOE_CHECK"):
        check_ids(topk_ids, w13.shape[0])
    case = case_of(x, x_scale is not None, w13, w2, topk_weights, topk_ids, activation, layout)
    select(case).backend.run(
        x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, activation=activation, layout=layout,
        out=out, workspace=workspace,
    )  # fmt: skip


def _empty(x: torch.Tensor, x_scale: torch.Tensor | None) -> torch.Tensor:
    return torch.empty(x.shape, dtype=torch.bfloat16 if x_scale is not None else x.dtype, device=x.device)


def _run(
    x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, activation, layout, workspace=None
) -> torch.Tensor:
    out = _empty(x, x_scale)
    _run_out(x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, activation, layout, out, workspace)
    return out


_ARGUMENTS = (
    "Tensor x, Tensor? x_scale, Tensor w13, Tensor w13_scale, Tensor w2, Tensor w2_scale, Tensor topk_weights, "
    "Tensor topk_ids, str activation, str layout"
)
define(
    f"moe_fp8_block({_ARGUMENTS}, Tensor(a!)? workspace=None) -> Tensor",
    lambda x, x_scale, *rest, **keywords: _empty(x, x_scale),
    _run,
)
define(
    f"moe_fp8_block_out({_ARGUMENTS}, Tensor(a!) out, Tensor(b!)? workspace=None) -> ()", lambda *a, **k: None, _run_out
)
