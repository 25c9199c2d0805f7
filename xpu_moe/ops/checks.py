"""Checks at the API edge. A message names the argument, what was got and what was wanted."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class BadArgument(ValueError):
    """An argument that an operator refuses."""


def require(condition: bool, argument: str, got: object, wanted: object) -> None:
    """Raise BadArgument `argument: got …, wanted …` unless `condition` holds."""
    if not condition:
        raise BadArgument(f"{argument}: got {got}, wanted {wanted}")


def shape(argument: str, tensor: torch.Tensor, wanted: Sequence[int]) -> None:
    require(tuple(tensor.shape) == tuple(wanted), f"{argument}.shape", tuple(tensor.shape), tuple(wanted))


def dtype(argument: str, tensor: torch.Tensor, *wanted: torch.dtype) -> None:
    require(tensor.dtype in wanted, f"{argument}.dtype", tensor.dtype, " or ".join(map(str, wanted)))


def same_device(tensors: dict[str, torch.Tensor]) -> None:
    """All tensors live on the device of the first."""
    (first, reference), *rest = tensors.items()
    for name, tensor in rest:
        require(tensor.device == reference.device, f"{name}.device", tensor.device, f"{reference.device} like {first}")


def dtype_name(tensor: torch.Tensor) -> str:
    """torch.bfloat16 -> "bfloat16"."""
    return str(tensor.dtype).removeprefix("torch.")
