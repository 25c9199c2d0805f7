"""Checks at the API edge. A message names the argument, what was got and what was wanted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import float_info
from typing import Any

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling

from xpu_moe.ops.errors import BadArgument as BadArgument

_DENSE = torch.strided


def require(condition: bool, argument: str, got: object, wanted: object) -> None:
    """Raise BadArgument `argument: got …, wanted …` unless `condition` holds."""
    if not condition:
        raise BadArgument(f"{argument}: got {got}, wanted {wanted}")


def tensor(argument: str, value: object) -> None:
    """`value` is a tensor, and a dense one."""
    if not isinstance(value, torch.Tensor):
        raise BadArgument(f"{argument}: got {type(value).__name__}, wanted a tensor")
    if value.layout is not _DENSE:
        _not_dense(argument, value)


def _not_dense(argument: str, value: torch.Tensor) -> None:
    got = f"a {str(value.layout).removeprefix('torch.').removeprefix('_')} tensor"
    raise BadArgument(f"{argument}: got {got}, wanted a dense (strided) one")


def rank(argument: str, tensor: object, wanted: int) -> None:
    """`tensor` is a dense tensor of `wanted` dimensions."""
    if not isinstance(tensor, torch.Tensor):
        raise BadArgument(f"{argument}: got {type(tensor).__name__}, wanted a tensor of {wanted} dimensions")
    if tensor.layout is not _DENSE:
        _not_dense(argument, tensor)
    if tensor.dim() != wanted:
        raise BadArgument(f"{argument}.dim(): got {tensor.dim()}, wanted {wanted}")


def ranks(**wanted: tuple[object, int]) -> None:
    """Every argument is a tensor of its number of dimensions: `ranks(x=(x, 2))`."""
    for name, (value, dimensions) in wanted.items():
        rank(name, value, dimensions)


def shape(argument: str, value: torch.Tensor, wanted: Sequence[int]) -> None:
    tensor(argument, value)
    if tuple(value.shape) != tuple(wanted):
        raise BadArgument(f"{argument}.shape: got {tuple(value.shape)}, wanted {tuple(wanted)}")


def dtype(argument: str, value: torch.Tensor, *wanted: torch.dtype) -> None:
    """`value` is a tensor of one of these dtypes; whether it is dense is asked with its rank or shape."""
    if not isinstance(value, torch.Tensor):
        tensor(argument, value)
    if value.dtype not in wanted:
        raise BadArgument(f"{argument}.dtype: got {value.dtype}, wanted {' or '.join(map(str, wanted))}")


def contiguous(argument: str, value: torch.Tensor, wanted: str = "contiguous") -> None:
    """`value` is contiguous; its strides are put into words only where it is not."""
    if not value.is_contiguous():
        raise BadArgument(f"{argument}: got strides {tuple(value.stride())}, wanted {wanted}")


def one_of(argument: str, value: object, wanted: Iterable[str]) -> None:
    """`value` is one of the names `wanted`."""
    names = tuple(wanted)
    good = isinstance(value, str) and value in names
    require(good, argument, repr(value), " or ".join(names) if len(names) < 3 else f"one of {', '.join(names)}")


def whole(argument: str, value: object) -> None:
    """`value` is an integer: 128.0 and True are none."""
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
        raise BadArgument(f"{argument}: got {value!r}, wanted an integer")


def positive(argument: str, value: object) -> None:
    """`value` is an integer above 0."""
    if type(value) is int and value > 0:  # what a norm is called with, again and again
        return
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool) or not value > 0:
        raise BadArgument(f"{argument}: got {value!r}, wanted an integer > 0")


def flag(argument: str, value: object) -> None:
    """`value` is True or False: None, 1 and "x" are neither, whatever their truth value."""
    if not isinstance(value, (bool, torch.SymBool)):
        raise BadArgument(f"{argument}: got {value!r}, wanted True or False")


def finite(argument: str, value: object, least: float = -float_info.max) -> None:
    """`value` is a number, neither NaN nor infinite, and not below `least`."""
    if type(value) is float and least <= value <= float_info.max:  # a NaN compares with nothing
        return
    number = isinstance(value, (float, int, torch.SymFloat, torch.SymInt)) and not isinstance(value, bool)
    if not number or not least <= value <= float_info.max:  # type: ignore[operator]
        bound = "" if least == -float_info.max else f" >= {least:g}"
        raise BadArgument(f"{argument}: got {value!r}, wanted a finite number{bound}")


def multiple(argument: str, size: int, of: int, unit: str) -> None:
    """`size` is `of` values or several times that many; `unit` says what `of` is."""
    require(size > 0 and size % of == 0, argument, size, f"a multiple of {unit}, at least {of}")


def same_device(tensors: dict[str, torch.Tensor]) -> None:
    """All tensors live on the device of the first."""
    (first, reference), *rest = tensors.items()
    for name, value in rest:
        if value.device != reference.device:
            raise BadArgument(f"{name}.device: got {value.device}, wanted {reference.device} like {first}")


def inference_only(**tensors: torch.Tensor | None) -> None:
    """No backend has a derivative: a tensor that autograd watches is refused, not cut from its graph."""
    if not is_grad_enabled():
        return
    for name, value in tensors.items():
        if value is not None and value.requires_grad:
            raise BadArgument(f"{name}.requires_grad: got True, wanted False: call under torch.inference_mode()")


def separate(argument: str, value: torch.Tensor) -> None:
    """Each element has its own memory: the steps of the wider strides clear all that the narrower ones reach."""
    if value.is_contiguous():
        return
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(value.shape, value.stride()) if size > 1):
        if stride <= reach:
            wanted = "rows that do not share memory: not an expanded or overlapping view"
            raise BadArgument(f"{argument}.stride(): got {tuple(value.stride())}, wanted {wanted}")
        reach += stride * (size - 1)


def output(out: object, like: torch.Tensor, kind: torch.dtype | None = None) -> None:
    """`out` takes a result of the shape, dtype (`kind`, where it is another) and device of `like`, each element its
    own memory, those of a row adjacent, no part of a graph."""
    rank("out", out, like.dim())
    assert isinstance(out, torch.Tensor)
    shape("out", out, like.shape)
    dtype("out", out, kind or like.dtype)
    if out.device != like.device:
        same_device({"x": like, "out": out})
    if not out.is_contiguous():
        separate("out", out)
        adjacent = out.shape[-1] < 2 or out.stride(-1) == 1  # a kernel steps over rows, never over columns
        require(adjacent, "out.stride()", tuple(out.stride()), "(…, 1): elements of a row adjacent")
    if out.requires_grad:
        inference_only(out=out)


def workspace(buffer: object, like: torch.Tensor) -> None:
    """`buffer` is None or bytes on the device of `like`; how many are wanted is the backend's own check."""
    if buffer is None:
        return
    rank("workspace", buffer, 1)
    assert isinstance(buffer, torch.Tensor)
    dtype("workspace", buffer, torch.uint8)
    if buffer.device != like.device:
        same_device({"x": like, "workspace": buffer})
    if not buffer.is_contiguous():
        raise BadArgument(f"workspace.stride(): got {tuple(buffer.stride())}, wanted (1,)")


def dtype_name(tensor: torch.Tensor) -> str:
    """torch.bfloat16 -> "bfloat16"."""
    return str(tensor.dtype).removeprefix("torch.")


def plain(tensor: torch.Tensor) -> bool:
    """Whether a call on it may leave torch's dispatcher out, some 15 us of an eager call: nothing traces it, and
    nothing differentiates it."""
    return type(tensor) is torch.Tensor and not tensor.requires_grad and not is_compiling()


def _signature(tensors: Sequence[torch.Tensor | None], settings: tuple[object, ...]) -> tuple[Any, ...]:
    key: list[Any] = [settings]
    for t in tensors:
        key += (None,) if t is None else (t.shape, t.dtype, t.layout, t.device)  # flat: a tuple each costs more
    return tuple(key)


class Fitted:
    """Calls whose arguments have passed their checks: the next of the same shapes, dtypes and devices is not asked
    again (a check of eight tensors costs 30 us of Python). For checks that depend on nothing else."""

    _MOST = 4096

    def __init__(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()

    def knows(self, tensors: Sequence[torch.Tensor | None], *settings: object) -> bool:
        """Whether such a call has passed. Never, where the first is no plain tensor, sizes are symbols, or autograd
        watches one: those are asked each time. `settings` of equal values are of equal types (128.0 is not 128)."""
        if type(tensors[0]) is not torch.Tensor or is_compiling():
            return False
        try:
            if is_grad_enabled():
                for t in tensors:
                    if t is not None and t.requires_grad:
                        return False
            return _signature(tensors, settings) in self._seen
        except (AttributeError, TypeError):  # no tensor, or a setting that is a list: the checks will name it
            return False

    def add(self, tensors: Sequence[torch.Tensor | None], *settings: object) -> None:
        """Remember a call that has just passed."""
        if type(tensors[0]) is not torch.Tensor or is_compiling():
            return
        if len(self._seen) >= self._MOST:
            self._seen.clear()
        self._seen.add(_signature(tensors, settings))
