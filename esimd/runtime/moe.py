"""`moe_u4` and `moe_u4_routed` on Intel GPUs. A room (ESIMD or SIMT twins) makes each a backend.

`supports` has a reason for everything that the kernels do not check themselves. `run` finds its plan by the call's own
shapes and calls the C++ operator; `bind` does so once for a layer and leaves only the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from xpu_moe.env import read
from xpu_moe.esimd.kernels import abi
from xpu_moe.esimd.kernels import launch as shapes
from xpu_moe.esimd.runtime import operators, programs
from xpu_moe.esimd.runtime.base import FLOATS, Base, nothing, workspace_for
from xpu_moe.esimd.runtime.room import KernelMissing, Room
from xpu_moe.esimd.runtime.session import Session
from xpu_moe.ops.activation import ACTIVATIONS
from xpu_moe.ops.contract import Case
from xpu_moe.ops.moe_u4 import check_ids


class Experts(Base):
    """What the two operators share: the case, the module, the workspace."""

    def refusal(self, case: Case) -> str | None:
        if case.layout != "n_major":
            return f"layout {case.layout!r}, wanted n_major (what the prefill GEMM reads as well)"
        if case.nibble not in ("u4", "s4"):
            return f"nibble {case.nibble!r}, wanted u4 or s4"
        if case.activation not in ACTIVATIONS:
            return f"activation {case.activation!r}, wanted one of {', '.join(ACTIVATIONS)}"
        if case.weights_dtype not in FLOATS:
            return f"route weights are {case.weights_dtype}, wanted one of {', '.join(FLOATS)}"
        return shapes.unsupported(
            case.dtype, case.tokens, case.hidden_size, case.intermediate_size, case.num_experts, case.top_k,
            case.group_size,
        )  # fmt: skip

    def module(self, case: Case) -> str:
        return self.room.shapes.down(
            case.dtype, 1, case.hidden_size, case.intermediate_size, case.top_k, case.group_size
        ).module

    def workspace(self, case: Case) -> int:
        """Bytes for the largest M of the case."""
        moe = programs.Moe(
            getattr(torch, case.dtype), case.hidden_size, case.intermediate_size, case.num_experts, case.top_k,
            case.group_size, case.nibble, case.activation, torch.float16,
            logits_dtype=torch.float32 if self.op == "moe_u4_routed" else None,
        )  # fmt: skip
        return programs.workspace_bytes(moe, case.tokens)


class Moe(Experts):
    """`moe_u4`: two launches, up and down."""

    op = "moe_u4"

    def plan(self, x, w13, w13_scale, w2, topk_weights, topk_ids, nibble, group_size, activation) -> int:
        """The identity of the plan for these tensors (any M up to the limit); made where it is new."""
        return _moe_plan(
            self.room, self._session(x), x.dtype, w2.shape[1], w2.shape[2] * 2, w13.shape[0], topk_ids.shape[1],
            group_size, nibble, activation, w13_scale.dtype, topk_weights.dtype, topk_ids.dtype,
        )  # fmt: skip

    def run(
        self, x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, nibble, group_size, activation="silu",
        layout="n_major", out, workspace=None,
    ):  # fmt: skip
        plan = self.plan(x, w13, w13_scale, w2, topk_weights, topk_ids, nibble, group_size, activation)
        if workspace is None:
            workspace = workspace_for(x.device).get(_need(topk_ids.numel(), w2.shape[2] * 2, 0))
        operators.moe_u4(x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, out, workspace, plan)
        return out

    def bind(
        self, w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor, *, nibble: str,
        group_size: int, top_k: int, dtype: torch.dtype, activation: str = "silu", weights_dtype=torch.float32,
        ids_dtype=torch.int32,
    ) -> Callable[..., None]:  # fmt: skip
        """A layer's call with everything decided: `call(x, topk_weights, topk_ids, out, workspace)`.

        Under XPU_MOE_CHECK=1 (asked now, not at the call) every call checks the ids first, which synchronises.
        """
        plan = _moe_plan(
            self.room, self._session(w13), dtype, w2.shape[1], w2.shape[2] * 2, w13.shape[0], top_k, group_size, nibble,
            activation, w13_scale.dtype, weights_dtype, ids_dtype,
        )  # fmt: skip
        launch = operators.moe_u4

        def call(x, topk_weights, topk_ids, out, workspace) -> None:
            launch(x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, out, workspace, plan)

        def checked(x, topk_weights, topk_ids, out, workspace) -> None:
            check_ids(topk_ids, w13.shape[0])
            call(x, topk_weights, topk_ids, out, workspace)

        return checked if read.flag("XPU_MOE_CHECK") else call


def _need(routes: int, intermediate_size: int, extra: int) -> int:
    """programs.workspace_bytes in terms of a call: `routes` = M * top_k."""
    return -(-4 * routes * intermediate_size // 64) * 64 + extra


@lru_cache(maxsize=4096)
def _moe_plan(room: Room, session: Session, *fields: Any, **named: Any) -> int:
    names = (
        "dtype", "hidden_size", "intermediate_size", "num_experts", "top_k", "group_size", "nibble", "activation",
        "scale_dtype", "weights_dtype", "ids_dtype",
    )  # fmt: skip
    moe = programs.Moe(**dict(zip(names, fields)), **named)
    if moe.scale_dtype not in _scales(moe.dtype):
        raise KernelMissing(
            f"w13_scale.dtype: got {moe.scale_dtype}, wanted {' or '.join(map(str, _scales(moe.dtype)))} with "
            f"activations of {moe.dtype}: convert the scales at load"
        )
    return session.install(programs.moe_plan(moe, room, session.key), room)


def _scales(dtype: torch.dtype) -> tuple[torch.dtype, ...]:
    """The scale dtypes that the kernels for an activation dtype read (abi.SCALE_BF16)."""
    return (torch.float16, torch.bfloat16) if dtype == torch.bfloat16 else (torch.float16,)


class RoutedMoe(Experts):
    """`moe_u4_routed`: from logits to output; ESIMD's `up` computes the routing, a twin's program launches it first."""

    op = "moe_u4_routed"

    def refusal(self, case: Case) -> str | None:
        if case.num_experts > abi.MAX_EXPERTS:
            return f"num_experts {case.num_experts}, wanted at most {abi.MAX_EXPERTS} where the router is included"
        return super().refusal(case)

    def run(
        self, x, w13, w13_scale, w2, w2_scale, logits, bias, top_k, *, nibble, group_size, activation="silu",
        renormalize=True, scale=1.0, layout="n_major", out, workspace=None,
    ):  # fmt: skip
        inter = w2.shape[2] * 2
        plan = _moe_plan(
            self.room, self._session(x), x.dtype, w2.shape[1], inter, w13.shape[0], top_k, group_size, nibble,
            activation, w13_scale.dtype, logits_dtype=logits.dtype, bias_dtype=None if bias is None else bias.dtype,
            renormalize=renormalize, route_scale=scale,
        )  # fmt: skip
        if workspace is None:
            routes = x.shape[0] * top_k
            workspace = workspace_for(x.device).get(_need(routes, inter, 8 * routes))
        bias = nothing(x.device) if bias is None else bias
        operators.moe_u4_routed(x, w13, w13_scale, w2, w2_scale, logits, bias, out, workspace, plan)
        return out

    def bind(self, w13, w13_scale, w2, w2_scale, bias=None, *, nibble, group_size, top_k, dtype, activation="silu",
             logits_dtype=torch.float32, renormalize=True, scale=1.0) -> Callable[..., None]:  # fmt: skip
        """A layer's call with everything decided: `call(x, logits, out, workspace)`."""
        plan = _moe_plan(
            self.room, self._session(w13), dtype, w2.shape[1], w2.shape[2] * 2, w13.shape[0], top_k, group_size, nibble,
            activation, w13_scale.dtype, logits_dtype=logits_dtype, bias_dtype=None if bias is None else bias.dtype,
            renormalize=renormalize, route_scale=scale,
        )  # fmt: skip
        launch, kept = operators.moe_u4_routed, nothing(w13.device) if bias is None else bias

        def call(x, logits, out, workspace) -> None:
            launch(x, w13, w13_scale, w2, w2_scale, logits, kept, out, workspace, plan)

        return call
