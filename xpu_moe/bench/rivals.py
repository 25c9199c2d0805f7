"""Other projects' kernels in a row: checked against the row's own truth, timed over the row's own calls.

A rival that computes something else is none: its entry is a sentence then, as it is where it is not installed or fails.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from xpu_moe.bench import timing
from xpu_moe.bench.suite import Setting


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """2-norm of the difference over that of `wanted` (float64)."""
    return float((found.double() - wanted).norm() / wanted.norm())


@dataclass(frozen=True)
class Rival:
    """A rival's us, or the sentence that says why there is none, and its error against float64."""

    us: float | str
    error: float | None = None


@dataclass(frozen=True)
class Calls:
    """What a row times, for its rivals: the same inputs and routes, and the same number of calls."""

    setting: Setting
    xs: list[torch.Tensor]
    inputs: list
    routes: Sequence[Any]
    out: torch.Tensor
    repeats: int

    def bound(self, adapter: Callable[..., list | str], *arguments: object) -> list | str:
        """A rival's callables, one a layer, or why there are none: never an exception."""
        try:
            with contextlib.redirect_stdout(sys.stderr):  # a package that logs there would end up in the JSON
                return adapter(*arguments)
        except Exception as error:
            return self._failed(error)

    def measure(self, runs: list | str, inputs: list, wanted: torch.Tensor, bound: float) -> Rival:
        """Check the first call of layer 0 against `wanted`, then time all calls, going round the layers."""
        if isinstance(runs, str):
            return Rival(runs)
        try:
            error = relative(runs[0](inputs[0], self.routes[0].weights, self.routes[0].ids), wanted)
            if not error <= bound:
                return Rival(f"wrong: relative error {error:.2g}, allowed {bound:g}", error)
            calls = [
                partial(runs[i % len(runs)], x, given.weights, given.ids)
                for i, (x, given) in enumerate(zip(inputs, self.routes))
            ]
            found = timing.measure(self.setting.kind, calls, rounds=self.setting.rounds, repeats=self.repeats)
        except Exception as failure:  # another project's code: the row says what it raised, our own figure stays
            return Rival(self._failed(failure))
        return Rival(found.us, error)

    def _failed(self, error: Exception) -> str:
        self.setting.say("".join(traceback.format_exception(error)))
        return f"failed: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """An error's kind and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no text'}"
