"""The decode kernels on a CPU: `launch` as it is, the card behind it emulated (tests/cuda/emulator)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from unittest import mock

import torch

from tests.cuda.emulator import emulator
from tests.cuda.emulator.emulator import Memory
from xpu_moe.cuda import jit
from xpu_moe.cuda.compiler import Program
from xpu_moe.cuda.decode import launch
from xpu_moe.cuda.decode.plan import Plan, Shape, plan

STAMP_BYTES = 128  # of a thread block (state.cuh, TRACE)
Edit = Callable[[Program], Program]


def blocks_for(hidden_size: int, row_blocks: int) -> int:
    """A grid in which a thread block has up to `row_blocks` 8-row blocks of W2; for 1, some have none."""
    return -(-hidden_size // 8 // row_blocks) + (3 if row_blocks == 1 else 0)


@cache
def compiled(unit: Program) -> emulator.Kernel:
    return emulator.Kernel(unit, "moe_decode", launch._SIGNATURE)


def memory_of(chosen: Plan, arguments: tuple, traced: bool = False) -> dict[str, Memory]:
    """What a launch may touch, to the byte: from its arguments and the sizes of its shape. `traced`: stamps as well."""
    s = chosen.shape
    x, xs, w13, s13, w2, s2, ids, weights, out, state, _, tokens, x_stride, xs_token, xs_group, out_stride = arguments
    rows = s.intermediate_size * (2 if s.gated else 1)
    element = 1 if s.bits == 8 else 2
    groups = s.hidden_size // 128

    def scales(n: int, k: int) -> int:
        if s.bits == 8:
            return s.num_experts * (n // 128) * (k // 128) * 4
        return s.num_experts * n * (k // s.group_size) * getattr(torch, s.scale).itemsize

    found = {
        "x": Memory(x, ((tokens - 1) * x_stride + s.hidden_size) * element),
        "w13": Memory(w13, s.num_experts * rows * s.hidden_size * s.bits // 8),
        "s13": Memory(s13, scales(rows, s.hidden_size)),
        "w2": Memory(w2, s.num_experts * s.hidden_size * s.intermediate_size * s.bits // 8),
        "s2": Memory(s2, scales(s.hidden_size, s.intermediate_size)),
        "ids": Memory(ids, tokens * s.top_k * (8 if s.wide_ids else 4)),
        "weights": Memory(weights, tokens * s.top_k * getattr(torch, s.route_weight).itemsize),
        "out": Memory(out, ((tokens - 1) * out_stride + s.hidden_size) * 2, True),
        "state": Memory(state, chosen.state_bytes + traced * chosen.blocks * STAMP_BYTES, True),
    }
    if s.bits == 8:
        found["xs"] = Memory(xs, ((tokens - 1) * xs_token + (groups - 1) * xs_group + 1) * 4)
    return found


class Card:
    """Emulated launches, in the order in which they were made. Those made inside `queue()` are kept to its end, then
    overlap as programmatic dependent launches may. `edit` changes the source, `planned` chooses the sizes."""

    def __init__(self, row_blocks: int = 4, races: bool = True, edit: Edit | None = None, planned=plan) -> None:
        self.row_blocks, self.races, self.edit, self.planned = row_blocks, races, edit, planned
        self.seed = 0
        self.counted: list[emulator.Counted] = []
        self._states: dict[int, torch.Tensor] = {}
        self._kept: list[tuple] | None = None

    def kernel(self, shape: Shape, size: int, _device: object) -> tuple[Plan, Launcher, torch.Tensor]:
        """What stands in for `launch._kernel`."""
        chosen = self.planned(shape, size, blocks_for(shape.hidden_size, self.row_blocks))
        bytes_ = chosen.state_bytes
        state = self._states.setdefault(bytes_, torch.zeros(bytes_, dtype=torch.uint8))
        return chosen, Launcher(self, chosen, self._edited(launch.unit(chosen))), state

    def _edited(self, unit: Program) -> Program:
        edited = unit if self.edit is None else self.edit(unit)
        assert self.edit is None or edited != unit, "the edit changes nothing: the kernel's text is another one now"
        return edited

    def take(self, one: object, memory: Mapping[str, Memory]) -> None:
        if self._kept is None:
            self._run([(one, memory)])
        else:
            self._kept.append((one, memory))

    @contextmanager
    def queue(self) -> Iterator[None]:
        self._kept = []
        try:
            yield
            self._run(self._kept)
        finally:
            self._kept = None

    def _run(self, kept: list[tuple]) -> None:
        memory = {f"{name} of launch {i}": m for i, (_, each) in enumerate(kept) for name, m in each.items()}
        self.seed += 1
        self.counted.append(emulator.run([one for one, _ in kept], memory, self.seed, self.races))


class Launcher:
    """What stands in for `jit.Kernel`."""

    def __init__(self, card: Card, chosen: Plan, unit: Program) -> None:
        self._card, self._chosen, self._kernel = card, chosen, compiled(unit)
        self._traced = bool(dict(unit.defines).get("TRACE"))

    def launch(self, grid, block, *arguments, stream, shared, programmatic) -> None:
        assert (grid, block) == ((self._chosen.blocks,), (self._chosen.threads,)) and stream == 0 and programmatic
        one = self._kernel.launch_of(*grid, *block, arguments, shared)
        self._card.take(one, memory_of(self._chosen, arguments, self._traced))


@contextmanager
def emulated(card: Card) -> Iterator[Card]:
    """Calls of the decode backends on CPU tensors run on `card`."""
    with mock.patch.object(launch, "_kernel", card.kernel), mock.patch.object(jit, "stream", lambda device: 0):
        yield card
