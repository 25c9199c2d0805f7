"""`moe_u4`: a mixture-of-experts layer on 4-bit weights, from routed tokens to the summed output.

    out[m] = sum over k of topk_weights[m, k] * W2[e] @ act(W13[e] @ x[m]),   e = topk_ids[m, k]

with W = scale * (nibble - 8) for `u4` (AutoRound/GPTQ symmetric) and scale * nibble for two's-complement `s4`.

One semantics for every backend: accumulation in float32 or better; a route whose expert id is out of range (-1
included) raises on the CPU, and on a device gets weight 0, its weights never read (it raises under XPU_MOE_CHECK=1);
an expert listed twice for a token counts twice; M = 0 gives an empty output.
"""

from __future__ import annotations

import torch

from xpu_moe import device
from xpu_moe.env import read
from xpu_moe.ops import checks
from xpu_moe.ops.activation import ACTIVATIONS, w13_rows
from xpu_moe.ops.contract import Case, Selection, select
from xpu_moe.ops.library import define

_fitted = checks.Fitted()
GROUP_SIZES = (32, 64, 128)
NIBBLES = ("u4", "s4")
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def case_of(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    nibble: str,
    group_size: int,
    activation: str,
    layout: str = "n_major",
) -> Case:
    """The `Case` of a call, from its tensors. Shapes are not checked here."""
    kind = x.device.type
    return Case(
        op="moe_u4",
        device=kind,
        architecture=device.architecture(kind),
        dtype=checks.dtype_name(x),
        tokens=x.shape[0],
        min_tokens=x.shape[0],
        hidden_size=x.shape[1],
        intermediate_size=w2.shape[2] * 2,
        num_experts=w13.shape[0],
        top_k=topk_ids.shape[1],
        group_size=group_size,
        nibble=nibble,
        activation=activation,
        scheme="int4",
        layout=layout,
        weights_dtype=checks.dtype_name(topk_weights),
    )


def check(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    nibble: str,
    group_size: int,
    activation: str,
) -> bool:
    """Raise BadArgument unless the arguments fit together (shapes, dtypes, devices; not the values of the ids).
    Whether such a call is known, hence needs no dispatcher of torch."""
    tensors = (x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids)
    if type(group_size) is int and _fitted.knows(tensors, nibble, group_size, activation):
        return True
    _check(*tensors, nibble, group_size, activation)
    _fitted.add(tensors, nibble, group_size, activation)
    return False


def _check(
    x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, nibble: str, group_size: int, activation: str
) -> None:
    checks.one_of("nibble", nibble, NIBBLES)
    checks.whole("group_size", group_size)
    checks.require(group_size in GROUP_SIZES, "group_size", group_size, " or ".join(map(str, GROUP_SIZES)))
    checks.ranks(
        x=(x, 2), w13=(w13, 3), w13_scale=(w13_scale, 3), w2=(w2, 3), w2_scale=(w2_scale, 3),
        topk_weights=(topk_weights, 2), topk_ids=(topk_ids, 2),
    )  # fmt: skip
    checks.one_of("activation", activation, ACTIVATIONS)
    checks.inference_only(x=x, w13_scale=w13_scale, w2_scale=w2_scale, topk_weights=topk_weights)
    tokens, hidden = x.shape
    experts, inter = w13.shape[0], w2.shape[2] * 2
    rows = w13_rows(activation, inter)
    checks.multiple("hidden_size", hidden, group_size, f"group_size {group_size}")
    checks.multiple("intermediate_size", inter, group_size, f"group_size {group_size}")
    checks.dtype("x", x, *FLOATS)
    checks.dtype("w13", w13, torch.uint8)
    checks.dtype("w2", w2, torch.uint8)
    for name, tensor in (("w13_scale", w13_scale), ("w2_scale", w2_scale), ("topk_weights", topk_weights)):
        checks.dtype(name, tensor, *FLOATS)
    checks.dtype("topk_ids", topk_ids, torch.int32, torch.int64)
    checks.shape("w13", w13, (experts, rows, hidden // 2))
    checks.shape("w13_scale", w13_scale, (experts, rows, hidden // group_size))
    checks.shape("w2", w2, (experts, hidden, inter // 2))
    checks.shape("w2_scale", w2_scale, (experts, hidden, inter // group_size))
    checks.require(topk_ids.shape[0] == tokens, "topk_ids.shape[0]", topk_ids.shape[0], f"{tokens}, the rows of x")
    checks.shape("topk_weights", topk_weights, tuple(topk_ids.shape))
    checks.same_device(
        {"x": x, "w13": w13, "w13_scale": w13_scale, "w2": w2, "w2_scale": w2_scale,
         "topk_weights": topk_weights, "topk_ids": topk_ids}
    )  # fmt: skip


def check_ids(topk_ids: torch.Tensor, num_experts: int) -> None:
    """Raise BadArgument when an expert id is out of range. Reads values: synchronises on a device."""
    bad = (topk_ids < 0) | (topk_ids >= num_experts)
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        got = topk_ids[row, column].item()
        raise checks.BadArgument(f"topk_ids[{row}, {column}]: got {got}, wanted 0 <= id < {num_experts} experts")


def selection(*args: torch.Tensor, **keywords: object) -> Selection:
    """Which backend `moe_u4` takes for these arguments, and why (same arguments as `moe_u4`)."""
    x, w13, _, w2, _, weights, ids = args
    known = {k: v for k, v in keywords.items() if k in ("nibble", "group_size", "activation", "layout")}
    known.setdefault("activation", "silu")
    return select(case_of(x, w13, w2, weights, ids, **known))  # type: ignore[arg-type]


def moe_u4(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    nibble: str,
    group_size: int,
    activation: str = "silu",
    layout: str = "n_major",
    out: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """One MoE layer on 4-bit weights.

    x [M, H] fp16/bf16/fp32 (rows may be strided); w13 uint8 [E, 2I, H/2] (gate rows, then up; low nibble = even k; I
    rows where the activation is not gated); w13_scale [E, 2I, H/group_size]; w2 uint8 [E, H, I/2]; w2_scale
    [E, H, I/group_size]; topk_weights [M, top_k] (float32 advised: no backend rounds it); topk_ids int32/int64
    [M, top_k]. I is the rank's share: under tensor parallelism the result is a partial sum. `layout` names the order
    of bytes that a backend's `prepare` gave. Returns [M, H] in x's dtype, written into `out` where given; `workspace`
    is a uint8 buffer of at least `selection(...).backend.workspace(case)` bytes.

    Raises BadArgument for arguments that do not fit, NoBackend when none serves the case.
    """
    known = check(x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, nibble, group_size, activation)
    if type(layout) is not str:
        raise checks.BadArgument(f"layout: got {layout!r}, wanted the name of a layout")
    if workspace is not None:
        checks.workspace(workspace, x)
    arguments = (x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, nibble, group_size, activation, layout)
    eager = known or checks.plain(x)
    if out is None:
        return _run(*arguments, workspace) if eager else torch.ops.xpu_moe.moe_u4(*arguments, workspace)
    checks.output(out, x)
    (_run_out if eager else torch.ops.xpu_moe.moe_u4_out)(*arguments, out, workspace)
    return out


def _run_out(
    x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, nibble, group_size, activation, layout, out, workspace=None
) -> None:
    case = case_of(x, w13, w2, topk_weights, topk_ids, nibble, group_size, activation, layout)
    if x.device.type == "cpu" or read.flag("XPU_MOE_CHECK"):
        check_ids(topk_ids, w13.shape[0])
    select(case).backend.run(
        x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, nibble=nibble, group_size=group_size,
        activation=activation, layout=layout, out=out, workspace=workspace,
    )  # fmt: skip


def _run(
    x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, nibble, group_size, activation, layout, workspace=None
) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _run_out(
        x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, nibble, group_size, activation, layout, out, workspace
    )
    return out


_ARGUMENTS = (
    "Tensor x, Tensor w13, Tensor w13_scale, Tensor w2, Tensor w2_scale, Tensor topk_weights, Tensor topk_ids, "
    "str nibble, int group_size, str activation, str layout"
)
define(
    f"moe_u4({_ARGUMENTS}, Tensor(a!)? workspace=None) -> Tensor",
    lambda x, *rest, **keywords: torch.empty(x.shape, dtype=x.dtype, device=x.device),
    _run,
)
define(f"moe_u4_out({_ARGUMENTS}, Tensor(a!) out, Tensor(b!)? workspace=None) -> ()", lambda *a, **k: None, _run_out)
