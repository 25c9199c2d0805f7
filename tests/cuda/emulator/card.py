"""An emulated card: the CUDA backends' own host code, on CPU tensors, with its launches kept and emulated.

    card = Card(monkeypatch)
    run = launch.runner(x, logits, bias, options)      # what a backend does on a card
    run(x, logits, bias, out)
    card.synchronize({"x": of(x), …}, seed)

A device's stream has the device's number as its handle, so ranks on devices 0, 1, … run side by side.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch

from tests.cuda.emulator.emulator import Counted, Kernel, Memory, run
from xpu_moe.cuda import jit
from xpu_moe.cuda.compiler import Program

_kernel = cache(Kernel)


class Card:
    """Stands in for `jit.load` while the test runs.

    `static_shared`: bytes of a block that a kernel's own arrays may take; `resident`: blocks of a launch
    that run at once (0: all); `edit` changes a kernel's source before it is compiled.
    """

    def __init__(
        self,
        monkeypatch,
        *,
        static_shared: int = 1024,
        resident: int = 0,
        edit: Callable[[Program], Program] = lambda unit: unit,
    ) -> None:
        self.static_shared, self.resident, self.edit = static_shared, resident, edit
        self.launches: list = []
        monkeypatch.setattr(jit, "load", self._load)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: device or 0, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        monkeypatch.setattr(jit, "stream", lambda device=None: device or 0)

    def _load(self, unit: Program, name: str, signature: str, device: int | None = None) -> _Loaded:
        return _Loaded(self, _kernel(self.edit(unit), name, signature))

    def synchronize(self, memory: Mapping[str, Memory], seed: int = 0, **more) -> Counted:
        """Emulate what was launched since the last time. Raises Fault."""
        launches, self.launches = self.launches, []
        return run(launches, memory, seed, **more)


class _Loaded:
    def __init__(self, card: Card, kernel: Kernel) -> None:
        self.card, self.kernel = card, kernel

    def launch(self, grid: Sequence[int], block: Sequence[int], *arguments, stream: int, **more) -> None:
        self.bind(grid, block, **more)(stream, *arguments)

    def bind(self, grid: Sequence[int], block: Sequence[int], *, shared: int = 0, programmatic: bool = False) -> _Bound:
        return _Bound(self, grid[0], block[0], shared, programmatic)


class _Bound:
    def __init__(self, loaded: _Loaded, grid: int, block: int, shared: int, programmatic: bool) -> None:
        self.loaded, self.grid, self.block, self.shared, self.programmatic = loaded, grid, block, shared, programmatic

    def __call__(self, stream: int, *arguments: int | float) -> None:
        card = self.loaded.card
        launch = self.loaded.kernel.launch_of(
            self.grid, self.block, arguments, self.shared, card.static_shared, stream=stream, resident=card.resident,
            programmatic=self.programmatic,
        )  # fmt: skip
        card.launches.append(launch)

    def fixed(self, start: int, stop: int, *given: int | float) -> Callable[..., None]:
        return lambda stream, *changed: self(stream, *given[:start], *changed, *given[stop:])
