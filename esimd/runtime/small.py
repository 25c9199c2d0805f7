"""`route_sigmoid_topk`, `qk_rms_partial` and `qk_rms_apply` on Intel GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from xpu_moe.esimd.kernels import abi
from xpu_moe.esimd.kernels import launch as shapes
from xpu_moe.esimd.runtime import operators, programs
from xpu_moe.esimd.runtime.base import FLOATS, Base, nothing, token_range
from xpu_moe.esimd.runtime.room import Room
from xpu_moe.esimd.runtime.session import Session
from xpu_moe.ops.contract import Case


class Route(Base):
    """`route_sigmoid_topk`."""

    op = "route_sigmoid_topk"

    def refusal(self, case: Case) -> str | None:
        if case.num_experts > abi.MAX_EXPERTS:
            return f"num_experts {case.num_experts}, wanted at most {abi.MAX_EXPERTS}"
        if case.top_k > abi.MAX_TOP_K:
            return f"top_k {case.top_k}, wanted 1..{abi.MAX_TOP_K}"
        if case.dtype not in FLOATS:
            return f"logits are {case.dtype}, wanted one of {', '.join(FLOATS)}"
        return token_range(case)

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
        bias = nothing(logits.device) if bias is None else bias
        operators.route_sigmoid_topk(logits, bias, weights, ids, plan)


@lru_cache(maxsize=1024)
def _route_plan(
    room: Room, session: Session, num_experts: int, top_k: int, logits_dtype: torch.dtype,
    bias_dtype: torch.dtype | None, renormalize: bool, scale: float,
) -> int:  # fmt: skip
    route = programs.Route(num_experts, top_k, logits_dtype, bias_dtype, renormalize, scale, shapes.MAX_TOKENS)
    return session.install(programs.route_plan(route, room, session.key), room)


class _QkRms(Base):
    def refusal(self, case: Case) -> str | None:
        if case.dtype not in abi.DTYPES:
            return f"qkv is {case.dtype}, wanted {' or '.join(abi.DTYPES)}"
        for name, size in (("q_size", case.q_size), ("kv_size", case.kv_size)):
            if size % 32:
                return f"{name} {size}, wanted a multiple of 32"
        return token_range(case)

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
def _rms_plan(
    make: Callable, room: Room, session: Session, dtype: torch.dtype, width: int, q_size: int, kv_size: int,
    **named: Any,
) -> int:  # fmt: skip
    rms = programs.Rms(dtype, width, q_size, kv_size, shapes.MAX_TOKENS, **named)
    return session.install(make(rms, room, session.key), room)
