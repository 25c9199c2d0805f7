"""Checks at the API edge. A message names the argument, what was got and what was wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class BadArgument(ValueError):
    """An argument that an operator refuses."""


def require(condition: bool, argument: str, got: object, wanted: object) -> None:
    """Raise BadArgument `argument: got …, wanted …` unless `condition` holds."""
    if not condition:
        raise BadArgument(f"{argument}: got {got}, wanted {wanted}")


def rank(argument: str, tensor: object, wanted: int) -> None:
    """`tensor` is a tensor of `wanted` dimensions."""
    if not isinstance(tensor, torch.Tensor):
        raise BadArgument(f"{argument}: got {type(tensor).__name__}, wanted a tensor of {wanted} dimensions")
    require(tensor.dim() == wanted, f"{argument}.dim()", tensor.dim(), wanted)


def shape(argument: str, tensor: torch.Tensor, wanted: Sequence[int]) -> None:
    require(tuple(tensor.shape) == tuple(wanted), f"{argument}.shape", tuple(tensor.shape), tuple(wanted))


def dtype(argument: str, tensor: torch.Tensor, *wanted: torch.dtype) -> None:
    require(tensor.dtype in wanted, f"{argument}.dtype", tensor.dtype, " or ".join(map(str, wanted)))


def same_device(tensors: dict[str, torch.Tensor]) -> None:
    """All tensors live on the device of the first."""
    (first, reference), *rest = tensors.items()
    for name, tensor in rest:
        require(tensor.device == reference.device, f"{name}.device", tensor.device, f"{reference.device} like {first}")


def inference_only(argument: str, tensor: torch.Tensor) -> None:
    """No backend has a derivative: a tensor that autograd watches is refused, not cut from its graph."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise BadArgument(f"{argument}.requires_grad: got True, wanted False: call under torch.inference_mode()")


def output(out: object, like: torch.Tensor) -> None:
    """`out` takes a result of the shape, dtype and device of `like`, each element its own memory."""
    rank("out", out, like.dim())
    assert isinstance(out, torch.Tensor)
    shape("out", out, tuple(like.shape))
    dtype("out", out, like.dtype)
    same_device({"x": like, "out": out})
    overlaps = any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride()))
    require(not overlaps, "out.stride()", tuple(out.stride()), "rows that do not share memory: not an expanded tensor")


def workspace(buffer: object, like: torch.Tensor) -> None:
    """`buffer` is None or bytes on the device of `like`; how many are wanted is the backend's own check."""
    if buffer is None:
        return
    rank("workspace", buffer, 1)
    assert isinstance(buffer, torch.Tensor)
    dtype("workspace", buffer, torch.uint8)
    same_device({"x": like, "workspace": buffer})


def dtype_name(tensor: torch.Tensor) -> str:
    """torch.bfloat16 -> "bfloat16"."""
    return str(tensor.dtype).removeprefix("torch.")


def plain(tensor: torch.Tensor) -> bool:
    """Whether a call on it may leave torch's dispatcher out, some 15 us of an eager call: nothing traces it, and
    nothing differentiates it."""
    return type(tensor) is torch.Tensor and not tensor.requires_grad and not torch.compiler.is_compiling()


class Fitted:
    """Calls whose arguments have passed their checks: the next of the same shapes, dtypes and devices is not asked
    again (a check of eight tensors costs 30 us of Python). For checks that depend on nothing else."""

    _MOST = 4096

    def __init__(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()

    def signature(self, tensors: Sequence[torch.Tensor | None], *settings: object) -> tuple[Any, ...] | None:
        """What the checks depend on; None where it cannot be remembered (sizes that are symbols)."""
        first = tensors[0]
        if first is None or not plain(first):
            return None
        return (*settings, *(None if t is None else (t.shape, t.dtype, t.device) for t in tensors))

    def __contains__(self, signature: tuple[Any, ...] | None) -> bool:
        return signature is not None and signature in self._seen

    def add(self, signature: tuple[Any, ...] | None) -> None:
        if signature is None:
            return
        if len(self._seen) >= self._MOST:
            self._seen.clear()
        self._seen.add(signature)
