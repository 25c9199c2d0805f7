"""Plans: what a call does, decided before the first call. Data here, kept and run by plan.hpp and torch_ops.hpp."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from xpu_moe.esimd.runtime.library import Library

TOKENS = -1  # stands for M in a slot's shape
AT_LEAST = -2  # a one-dimensional buffer of at least the program's workspace bytes


class Kind(IntEnum):
    """How an argument of a kernel is found at the call (the numbers are plan.hpp's)."""

    TENSOR = 0
    INT32 = 1
    FLOAT32 = 2
    STRIDE = 3
    NULL = 4


@dataclass(frozen=True)
class Argument:
    """One kernel argument. `value`: the slot's index, the whole number or the float's bits; `extra`: byte offset."""

    kind: Kind
    value: int = 0
    extra: int = 0


def integer(value: int) -> Argument:
    return Argument(Kind.INT32, value)


def real(value: float) -> Argument:
    return Argument(Kind.FLOAT32, struct.unpack("<i", struct.pack("<f", value))[0])


@dataclass(frozen=True)
class Slot:
    """What a tensor argument must look like: dtype, shape (TOKENS for M), contiguous but for rows where `row_stride`.

    `absent`: the plan does without this optional tensor, which then has no elements.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    row_stride: bool = False
    absent: bool = False
    alignment: int = 1


@dataclass(frozen=True)
class Launch:
    """One kernel of a program: `groups` x `local` work-items (for ESIMD: hardware threads), last dimension fastest."""

    kernel: str
    module: str  # file stem of the SPIR-V
    groups: tuple[int, int, int]
    local: tuple[int, int, int]
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Program:
    """The launches of one call, and the workspace that they need."""

    launches: tuple[Launch, ...]
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """A case's slots and its programs by M (1..limit). `what` says in words what it is for."""

    what: str
    slots: tuple[Slot, ...]
    programs: Mapping[int, Program]
    tokens_slot: int = 0

    @property
    def identity(self) -> int:
        """A number that depends on `what` alone: the same in every process, so that a compiled graph may keep it."""
        return int.from_bytes(hashlib.sha256(self.what.encode()).digest()[:8], "little") >> 1


# torch's dtype codes in its C interface: c10::ScalarType's numbers, which never change
_CODES = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
    torch.float64: 7, torch.bfloat16: 15,
}  # fmt: skip


def install(library: Library, plan: Plan, kernels: Mapping[str, int]) -> int:
    """Hand a plan to the library; returns its identity. `kernels`: name -> address. A known plan is left as it is."""
    handle = library.plan(plan.identity, plan.what, plan.tokens_slot, max(plan.programs))
    for slot in plan.slots:
        name = str(slot.dtype).removeprefix("torch.")
        library.plan_slot(
            handle, slot.name, _CODES[slot.dtype], name, slot.row_stride, slot.absent, slot.alignment,
            slot.dtype.itemsize, slot.shape,
        )  # fmt: skip
    for tokens, program in plan.programs.items():
        library.plan_program(handle, tokens, program.workspace_bytes, _words(program.launches, kernels))
    library.plan_add(handle)
    return plan.identity


def _words(launches: Sequence[Launch], kernels: Mapping[str, int]) -> list[int]:
    """The flat form that plan.hpp's read_program takes."""
    words: list[int] = []
    for launch in launches:
        name = launch.kernel.encode()
        words += [kernels[launch.kernel], len(name), *name, *launch.groups, *launch.local, len(launch.arguments)]
        for argument in launch.arguments:
            words += [int(argument.kind), argument.value, argument.extra]
    return words
