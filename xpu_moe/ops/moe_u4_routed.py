"""`moe_u4_routed`: a 4-bit MoE layer from router logits to output in one call.

    weights, ids = route_sigmoid_topk(logits, bias, top_k)        # kept in the workspace, see route_sigmoid_topk.py
    out          = moe_u4(x, …, weights, ids)                     # see moe_u4.py

The same semantics as the two operators one after the other; what it saves is a launch and a trip through the host.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from xpu_moe.ops import checks
from xpu_moe.ops.contract import Case, Selection, select
from xpu_moe.ops.library import define
from xpu_moe.ops.moe_u4 import case_of as _moe_case
from xpu_moe.ops.moe_u4 import check as _check_moe
from xpu_moe.ops.route_sigmoid_topk import check as _check_routing
from xpu_moe.ops.route_sigmoid_topk import check_weighing


def case_of(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, logits: torch.Tensor, top_k: int, nibble: str,
    group_size: int, activation: str, layout: str = "n_major",
) -> Case:  # fmt: skip
    """The `Case` of a call; `weights_dtype` is the dtype of the logits."""
    routes = logits.new_empty((0, top_k), device="meta")
    case = _moe_case(x, w13, w2, routes, routes, nibble, group_size, activation, layout)
    return replace(case, op="moe_u4_routed", weights_dtype=checks.dtype_name(logits))


def selection(x: torch.Tensor, w13, w13_scale, w2, w2_scale, logits, bias, top_k: int, **keywords: object) -> Selection:
    """Which backend `moe_u4_routed` takes for these arguments, and why (same arguments as `moe_u4_routed`)."""
    known = {k: v for k, v in keywords.items() if k in ("nibble", "group_size", "activation", "layout")}
    known.setdefault("activation", "silu")
    return select(case_of(x, w13, w2, logits, top_k, **known))  # type: ignore[arg-type]


def check(x, w13, w13_scale, w2, w2_scale, logits, bias, top_k, nibble, group_size, activation) -> None:
    """Raise BadArgument unless the arguments fit together."""
    _check_routing(logits, bias, top_k)
    checks.ranks(
        x=(x, 2), w13=(w13, 3), w13_scale=(w13_scale, 3), w2=(w2, 3), w2_scale=(w2_scale, 3)
    )  # fmt: skip
    checks.inference_only(x=x, w13_scale=w13_scale, w2_scale=w2_scale)
    checks.shape("logits", logits, (x.shape[0], w13.shape[0]))
    weights = torch.empty((x.shape[0], top_k), dtype=torch.float32, device=x.device if x.is_meta else "meta")
    ids = torch.empty_like(weights, dtype=torch.int32)
    # Shapes and dtypes of the experts are moe_u4's own check; the routes that it would be given have none of their own.
    meta = [tensor.to("meta") for tensor in (x, w13, w13_scale, w2, w2_scale)]
    _check_moe(meta[0], meta[1], meta[2], meta[3], meta[4], weights, ids, nibble, group_size, activation)
    checks.same_device({"x": x, "w13": w13, "w13_scale": w13_scale, "w2": w2, "w2_scale": w2_scale, "logits": logits})


def moe_u4_routed(
    x: torch.Tensor, w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor,
    logits: torch.Tensor, bias: torch.Tensor | None, top_k: int, *, nibble: str, group_size: int,
    activation: str = "silu", renormalize: bool = True, scale: float = 1.0, layout: str = "n_major",
    out: torch.Tensor | None = None, workspace: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """One MoE layer on 4-bit weights, routed from `logits` [M, E] and `bias` [E] or None.

    Expert tensors, `out` and `workspace` as in `moe_u4`; logits, bias, `renormalize` and `scale` as in
    `route_sigmoid_topk`. Returns [M, H] in x's dtype. Raises BadArgument, NoBackend.
    """
    check(x, w13, w13_scale, w2, w2_scale, logits, bias, top_k, nibble, group_size, activation)
    check_weighing(renormalize, scale)
    checks.require(isinstance(layout, str), "layout", repr(layout), "the name of a layout")
    tensors = (x, w13, w13_scale, w2, w2_scale, logits, bias)
    settings = (top_k, nibble, group_size, activation, renormalize, scale, layout)
    checks.workspace(workspace, x)
    if out is None:
        return torch.ops.xpu_moe.moe_u4_routed(*tensors, *settings, workspace)
    checks.output(out, x)
    torch.ops.xpu_moe.moe_u4_routed_out(*tensors, *settings, out, workspace)
    return out


def _run_out(
    x, w13, w13_scale, w2, w2_scale, logits, bias, top_k, nibble, group_size, activation, renormalize, scale, layout,
    out, workspace=None,
) -> None:  # fmt: skip
    case = case_of(x, w13, w2, logits, top_k, nibble, group_size, activation, layout)
    select(case).backend.run(
        x, w13, w13_scale, w2, w2_scale, logits, bias, top_k, nibble=nibble, group_size=group_size,
        activation=activation, renormalize=renormalize, scale=scale, layout=layout, out=out, workspace=workspace,
    )  # fmt: skip


def _run(
    x, w13, w13_scale, w2, w2_scale, logits, bias, top_k, nibble, group_size, activation, renormalize, scale, layout,
    workspace=None,
) -> torch.Tensor:  # fmt: skip
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _run_out(
        x, w13, w13_scale, w2, w2_scale, logits, bias, top_k, nibble, group_size, activation, renormalize, scale,
        layout, out, workspace,
    )  # fmt: skip
    return out


_ARGUMENTS = (
    "Tensor x, Tensor w13, Tensor w13_scale, Tensor w2, Tensor w2_scale, Tensor logits, Tensor? bias, int top_k, "
    "str nibble, int group_size, str activation, bool renormalize, float scale, str layout"
)
define(
    f"moe_u4_routed({_ARGUMENTS}, Tensor(a!)? workspace=None) -> Tensor",
    lambda x, *rest, **keywords: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    _run,
)
define(
    f"moe_u4_routed_out({_ARGUMENTS}, Tensor(a!) out, Tensor(b!)? workspace=None) -> ()", lambda *a, **k: None, _run_out
)
