"""`all_reduce_add_rms`: the sum over the ranks, added to the residual, then RMS-normed, as one operator.

    residual_out = all-reduce(x) + residual                            rounded once to x's dtype
    normed       = residual_out * rsqrt(mean(residual_out^2) + eps) * weight

x and residual [M, H] fp16/bf16/fp32 contiguous, weight [H] fp16/bf16/fp32; arithmetic in float32; every rank gets the
same bits. The norm reads residual_out before it is rounded where the backend fuses, after it where it composes: the two
differ by less than the rounding of the dtype.

A backend's `run(x, residual, weight, *, eps, world_size, group, normed_out, residual_out)` may get `residual_out` that
is `residual` itself.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from xpu_moe import device
from xpu_moe.comm import group as groups
from xpu_moe.ops import checks
from xpu_moe.ops.contract import Backend, Case, Selection, select
from xpu_moe.ops.library import define

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def case_of(x: torch.Tensor, weight: torch.Tensor, world_size: int, group: str) -> Case:
    """The `Case` of a call, from its tensors."""
    return _case(x.device.type, x.dtype, x.shape[0], x.shape[1], weight.dtype, world_size, group)


def selection(x: torch.Tensor, weight: torch.Tensor, communicator: groups.Communicator) -> Selection:
    """Which backend `all_reduce_add_rms` takes for these arguments, and why."""
    return select(case_of(x, weight, communicator.world_size, communicator.name))


def all_reduce_add_rms(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float,
    communicator: groups.Communicator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(normed [M, H], residual_out [M, H]), both new tensors; the default group where no communicator is named."""
    checks.rank("x", x, 2)
    checks.dtype("x", x, *FLOATS)
    checks.contiguous("x", x, "a contiguous tensor")
    checks.shape("residual", residual, tuple(x.shape))
    checks.dtype("residual", residual, x.dtype)
    checks.contiguous("residual", residual, "a contiguous tensor")
    checks.shape("weight", weight, (x.shape[1],))
    checks.dtype("weight", weight, *FLOATS)
    checks.same_device({"x": x, "residual": residual, "weight": weight})
    checks.inference_only(x=x, residual=residual, weight=weight)
    checks.finite("eps", eps, 0.0)
    who = groups.given(communicator)
    eager = type(x) is torch.Tensor and not torch.compiler.is_compiling()  # then the dispatcher is pure cost
    call = _run if eager else torch.ops.xpu_moe.all_reduce_add_rms
    return call(x, residual, weight, eps, who.world_size, who.name)


@lru_cache(maxsize=4096)
def _case(kind, dtype, tokens, hidden_size, weights_dtype, world_size, group) -> Case:
    return Case(
        op="all_reduce_add_rms",
        device=kind,
        architecture=device.architecture(kind),
        dtype=str(dtype).removeprefix("torch."),
        tokens=tokens,
        min_tokens=tokens,
        hidden_size=hidden_size,
        weights_dtype=str(weights_dtype).removeprefix("torch."),
        world_size=world_size,
        bytes=tokens * hidden_size * dtype.itemsize,
        group=group,
    )


@lru_cache(maxsize=4096)
def _backend(kind, dtype, tokens, hidden_size, weights_dtype, world_size, group) -> Backend:
    return select(_case(kind, dtype, tokens, hidden_size, weights_dtype, world_size, group)).backend


def forget() -> None:
    """Drop cached decisions: for a backend that became available (peer memory mapped) after a first call."""
    _backend.cache_clear()
    select.cache_clear()


def _run(x, residual, weight, eps, world_size, group):
    normed, total = torch.empty_like(x), torch.empty_like(x)
    if x.shape[0]:
        backend = _backend(x.device.type, x.dtype, x.shape[0], x.shape[1], weight.dtype, world_size, group)
        backend.run(
            x, residual, weight, eps=eps, world_size=world_size, group=group, normed_out=normed, residual_out=total
        )
    return normed, total


define(
    "all_reduce_add_rms(Tensor x, Tensor residual, Tensor weight, float eps, int world_size, str group)"
    " -> (Tensor, Tensor)",
    lambda x, *_: (torch.empty_like(x), torch.empty_like(x)),
    _run,
)
