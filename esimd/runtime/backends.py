"""The backends of Intel GPUs. One class an operator; a room (ESIMD or SIMT twins) makes it a backend.

`supports` has a reason for everything that the kernels do not check themselves. `run` finds its plan by the call's own
shapes and calls the C++ operator; `bind` does so once for a layer and leaves only the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch

from xpu_moe.esimd.kernels import abi
from xpu_moe.esimd.kernels import launch as shapes
from xpu_moe.esimd.runtime import operators, programs
from xpu_moe.esimd.runtime.build import BuildError
from xpu_moe.esimd.runtime.library import RuntimeFailure
from xpu_moe.esimd.runtime.libsycl import LibsyclError
from xpu_moe.esimd.runtime.room import KernelMissing, Room
from xpu_moe.esimd.runtime.session import Session
from xpu_moe.esimd.runtime.spirv import SpirvError
from xpu_moe.esimd.runtime.workspace import Workspace
from xpu_moe.ops.activation import ACTIVATIONS
from xpu_moe.ops.contract import Case, Support
from xpu_moe.toolenv import ToolEnvironmentError

# What can go wrong between a case that the kernels serve and a kernel that is loaded: a refusal with its reason.
_FAILURES = (LibsyclError, BuildError, RuntimeFailure, KernelMissing, SpirvError, ToolEnvironmentError)
_FLOATS = ("float32", "float16", "bfloat16")
SessionOf = Callable[[int], Session]


@cache
def workspace_for(device: torch.device) -> Workspace:
    """The workspace of calls that bring none: one a device, grow-only, never freed."""
    return Workspace(device)


class _Backend:
    """What the five have in common: a room, the session of a device, `supports` in two steps."""

    op = ""

    def __init__(self, room: Room, session_of: SessionOf) -> None:
        self.name, self.room, self._session_of = room.name, room, session_of

    def supports(self, case: Case) -> Support:
        reason = self.refusal(case) or _device_refusal(self.room, self._session_of, self.module(case))
        return Support(False, reason) if reason else Support(True, self.room.why)

    def refusal(self, case: Case) -> str | None:
        """Why the kernels cannot serve the case, whatever the device."""
        raise NotImplementedError

    def module(self, case: Case) -> str:
        """The stem of the SPIR-V file that serves the case."""
        raise NotImplementedError

    def prepare(self, weights: Any, case: Case) -> Any:
        """The kernels read the canonical layout, which is also what the prefill GEMM reads: nothing to do."""
        return weights

    def workspace(self, case: Case) -> int:
        return 0

    def _session(self, tensor: torch.Tensor) -> Session:
        return self._session_of(tensor.device.index or 0)


@lru_cache(maxsize=64)
def _device_refusal(room: Room, session_of: SessionOf, module: str, index: int = 0) -> str | None:
    """Why a device cannot run a room's module; asks once (builds the launch library where it is not cached)."""
    missing = room.missing(module)
    if missing:
        return missing
    try:
        session = session_of(index)
        lacking = room.lacking(session.device)
        if lacking is None:
            session.load(room, module)
        return lacking
    except _FAILURES as error:
        return str(error)


def _token_range(case: Case) -> str | None:
    if case.tokens > shapes.MAX_TOKENS:
        return f"{case.tokens} tokens, wanted at most {shapes.MAX_TOKENS}: a decode kernel"
    return None


class Moe(_Backend):
    """`moe_u4`: two launches, up and down."""

    op = "moe_u4"

    def refusal(self, case: Case) -> str | None:
        if case.layout != "n_major":
            return f"layout {case.layout!r}, wanted n_major (what the prefill GEMM reads as well)"
        if case.nibble not in ("u4", "s4"):
            return f"nibble {case.nibble!r}, wanted u4 or s4"
        if case.activation not in ACTIVATIONS:
            return f"activation {case.activation!r}, wanted one of {', '.join(ACTIVATIONS)}"
        if case.weights_dtype not in _FLOATS:
            return f"route weights are {case.weights_dtype}, wanted one of {', '.join(_FLOATS)}"
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
        """A layer's call with everything decided: `call(x, topk_weights, topk_ids, out, workspace)`."""
        plan = _moe_plan(
            self.room, self._session(w13), dtype, w2.shape[1], w2.shape[2] * 2, w13.shape[0], top_k, group_size, nibble,
            activation, w13_scale.dtype, weights_dtype, ids_dtype,
        )  # fmt: skip
        launch = operators.moe_u4

        def call(x, topk_weights, topk_ids, out, workspace) -> None:
            launch(x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, out, workspace, plan)

        return call


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


class RoutedMoe(Moe):
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
        bias = _nothing(x.device) if bias is None else bias
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
        launch, kept = operators.moe_u4_routed, _nothing(w13.device) if bias is None else bias

        def call(x, logits, out, workspace) -> None:
            launch(x, w13, w13_scale, w2, w2_scale, logits, kept, out, workspace, plan)

        return call


@cache
def _nothing(device: torch.device) -> torch.Tensor:
    """Stands for an optional tensor that is not given."""
    return torch.empty(0, dtype=torch.float32, device=device)


class Route(_Backend):
    """`route_sigmoid_topk`."""

    op = "route_sigmoid_topk"

    def refusal(self, case: Case) -> str | None:
        if case.num_experts > abi.MAX_EXPERTS:
            return f"num_experts {case.num_experts}, wanted at most {abi.MAX_EXPERTS}"
        if case.top_k > abi.MAX_TOP_K:
            return f"top_k {case.top_k}, wanted 1..{abi.MAX_TOP_K}"
        if case.dtype not in _FLOATS:
            return f"logits are {case.dtype}, wanted one of {', '.join(_FLOATS)}"
        return _token_range(case)

    def module(self, case: Case) -> str:
        return self.room.shapes.route(1).module

    def run(self, logits, bias, top_k, *, renormalize, scale):
        weights = logits.new_empty((logits.shape[0], top_k), dtype=torch.float32)
        ids = logits.new_empty((logits.shape[0], top_k), dtype=torch.int32)
        self.run_out(logits, bias, top_k, weights, ids, renormalize=renormalize, scale=scale)
        return weights, ids

    def run_out(self, logits, bias, top_k, weights, ids, *, renormalize, scale) -> None:
        """Into `weights` float32 [M, top_k] and `ids` int32 [M, top_k]: allocates nothing."""
        plan = _route_plan(
            self.room, self._session(logits), logits.shape[1], top_k, logits.dtype,
            None if bias is None else bias.dtype, renormalize, scale,
        )  # fmt: skip
        bias = _nothing(logits.device) if bias is None else bias
        operators.route_sigmoid_topk(logits, bias, weights, ids, plan)


@lru_cache(maxsize=1024)
def _route_plan(room: Room, session: Session, *fields: Any) -> int:
    route = programs.Route(*fields, limit=shapes.MAX_TOKENS)
    return session.install(programs.route_plan(route, room, session.key), room)


class _QkRms(_Backend):
    def refusal(self, case: Case) -> str | None:
        if case.dtype not in abi.DTYPES:
            return f"qkv is {case.dtype}, wanted {' or '.join(abi.DTYPES)}"
        for name, size in (("q_size", case.q_size), ("kv_size", case.kv_size)):
            if size % 32:
                return f"{name} {size}, wanted a multiple of 32"
        return _token_range(case)

    def module(self, case: Case) -> str:
        return self.room.shapes.qk_partial(case.dtype, 1).module


class Partial(_QkRms):
    """`qk_rms_partial`: fp32 sums of squares of Q and K."""

    op = "qk_rms_partial"

    def run(self, qkv, *, q_size, kv_size, out):
        plan = _rms_plan(programs.partial_plan, self.room, self._session(qkv), qkv.dtype, qkv.shape[1], q_size, kv_size)
        operators.qk_rms_partial(qkv, out, plan)


class Rms(_QkRms):
    """`qk_rms_apply`: scale Q and K by their all-reduced sums."""

    op = "qk_rms_apply"

    def run(self, qkv, sums, q_weight, k_weight, *, q_size, kv_size, eps, world_size, q_out, k_out):
        plan = _rms_plan(
            programs.apply_plan, self.room, self._session(qkv), qkv.dtype, qkv.shape[1], q_size, kv_size,
            weights_dtype=q_weight.dtype, world_size=world_size, eps=eps,
        )  # fmt: skip
        operators.qk_rms_apply(qkv, sums, q_weight, k_weight, q_out, k_out, plan)


@lru_cache(maxsize=1024)
def _rms_plan(make: Callable, room: Room, session: Session, *fields: Any, **named: Any) -> int:
    rms = programs.Rms(*fields, limit=shapes.MAX_TOKENS, **named)
    return session.install(make(rms, room, session.key), room)
