"""`all_reduce`: the sum over the ranks of a group, clone-safe or in place.

Two operators for torch.compile: `xpu_moe::all_reduce` returns a new tensor and never aliases its input (a compiled
graph may hold the input for later), `xpu_moe::all_reduce_` writes into it. Every rank gets the same bits. World size 1
and empty tensors communicate nothing.

A backend's `run(x, *, world_size, group, out)` leaves the sum in `out`, which has x's shape and dtype and may be x
itself; both are contiguous. AVG is not offered: it was wrong for tiny tensors on one card and library
(torch-xpu-ops#3020), so sum and divide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch.compiler import is_compiling

from xpu_moe import device
from xpu_moe.comm import group as groups
from xpu_moe.ops import checks
from xpu_moe.ops.contract import Backend, Case, Selection, select
from xpu_moe.ops.library import define

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.float64)


def case_of(x: torch.Tensor, world_size: int, group: str) -> Case:
    """The `Case` of a call, from its tensor."""
    size = x.numel() * x.element_size()
    return _case(x.device.type, x.dtype, size, world_size, group)


def selection(x: torch.Tensor, communicator: groups.Communicator) -> Selection:
    """Which backend `all_reduce` takes for these arguments, and why."""
    return select(case_of(x, communicator.world_size, communicator.name))


def all_reduce(
    x: torch.Tensor, communicator: groups.Communicator | None = None, *, inplace: bool = False
) -> torch.Tensor:
    """Sum of `x` (any shape, contiguous) over the communicator's ranks, the default group's where None.

    Returns a new tensor, or `x` itself with `inplace`. Shape, dtype and order of calls must agree on every rank.
    Raises BadArgument for a tensor that does not fit, CollectiveTimeout where the library reports one.
    """
    if type(communicator) is not groups.Communicator:
        communicator = groups.given(communicator)
    try:
        eager = type(x) is torch.Tensor and x.dtype in DTYPES and x.is_contiguous() and not x.requires_grad
    except RuntimeError:  # a sparse layout that has no strides
        eager = False
    if eager and not is_compiling():
        out = x if inplace else torch.empty_like(x)  # eager: the dispatcher costs more than a small all-reduce
        run(x, out, communicator.world_size, communicator.name)
        return out
    checks.tensor("x", x)
    checks.dtype("x", x, *DTYPES)
    checks.inference_only(x=x)
    checks.contiguous("x", x, "a contiguous tensor (call .contiguous())")
    if inplace:
        torch.ops.xpu_moe.all_reduce_(x, communicator.world_size, communicator.name)
        return x
    return torch.ops.xpu_moe.all_reduce(x, communicator.world_size, communicator.name)


@lru_cache(maxsize=4096)
def _case(kind: str, dtype: torch.dtype, size: int, world_size: int, group: str) -> Case:
    return Case(
        op="all_reduce",
        device=kind,
        architecture=device.architecture(kind),
        dtype=str(dtype).removeprefix("torch."),
        bytes=size,
        world_size=world_size,
        group=group,
    )


@lru_cache(maxsize=4096)
def _backend(kind: str, dtype: torch.dtype, size: int, world_size: int, group: str) -> Backend:
    return select(_case(kind, dtype, size, world_size, group)).backend


# The bound call of (shape, dtype, device, group): what an eager all-reduce of 2 us can afford to look up.
_CALLS: dict[tuple, Callable[[torch.Tensor, torch.Tensor], object]] = {}


def forget() -> None:
    """Drop cached decisions: for a backend that became available (peer memory mapped) after a first call."""
    _CALLS.clear()
    _backend.cache_clear()
    select.cache_clear()


def run(x: torch.Tensor, out: torch.Tensor, world_size: int, group: str) -> None:
    """The call inside other operators: no checks, no dispatch through torch."""
    key = (x.shape, x.dtype, x.device, group)
    call = _CALLS.get(key)
    if call is None:
        if len(_CALLS) >= 4096:
            _CALLS.clear()
        call = _CALLS[key] = _bound(x, world_size, group)
    call(x, out)


def _bound(x: torch.Tensor, world_size: int, group: str) -> Callable[[torch.Tensor, torch.Tensor], object]:
    """(x, out) -> sum over the ranks, for tensors like x. A backend may offer `bind`, else its `run` is taken."""
    if world_size == 1 or x.numel() == 0:
        return lambda x, out: None if out is x else out.copy_(x)
    backend = _backend(x.device.type, x.dtype, x.numel() * x.element_size(), world_size, group)
    bind = getattr(backend, "bind", None)
    if bind is not None:
        return bind(x, world_size=world_size, group=group)
    return lambda x, out: backend.run(x, world_size=world_size, group=group, out=out)


def _run(x: torch.Tensor, world_size: int, group: str) -> torch.Tensor:
    out = torch.empty_like(x)
    run(x, out, world_size, group)
    return out


define(
    "all_reduce(Tensor x, int world_size, str group) -> Tensor",
    lambda x, world_size, group: torch.empty_like(x),
    _run,
)
define(
    "all_reduce_(Tensor(a!) x, int world_size, str group) -> ()",
    lambda x, world_size, group: None,
    lambda x, world_size, group: run(x, x, world_size, group),
)
