"""Suites: files of `xpu_moe/bench/suites/`, found by name; adding a file adds the suite.

A suite has `HELP` (one line) and `rows(setting) -> iterator of Row`. It checks what it times, in the same run, and
yields a row for every rival that it could not import as well (`rival_note`), never a stored number.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import xpu_moe.bench.suites as _suites
from xpu_moe import streams

if TYPE_CHECKING:  # it imports torch, which the names of the suites do not need
    from xpu_moe.bench.ceilings import Ceiling


@dataclass(frozen=True)
class Setting:
    """What a suite is asked for.

    `kind` is cuda | xpu | cpu. On a CPU, and with `quick`, suites take small shapes. `tokens` replaces the suite's own
    list of M where given. `rounds` of each timing; `seed` of all random inputs.
    """

    kind: str
    ceiling: Ceiling
    quick: bool = False
    rounds: int = 20
    seed: int = 0
    tokens: tuple[int, ...] = ()

    @property
    def small(self) -> bool:
        """Whether shapes should be small: asked for, or no accelerator."""
        return self.quick or self.kind == "cpu"

    def sizes(self, wanted: tuple[int, ...], small: tuple[int, ...]) -> tuple[int, ...]:
        """The list of M to walk."""
        return self.tokens or (small if self.small else wanted)

    def say(self, text: str) -> None:
        """Progress, on stderr."""
        streams.warn(f"bench: {text}")


def names() -> tuple[str, ...]:
    """The suites that exist, by file name."""
    found = {
        file.stem for folder in _suites.__path__ for file in Path(folder).glob("*.py") if not file.stem.startswith("_")
    }
    return tuple(sorted(found))


def load(name: str) -> ModuleType:
    """A suite's module. ValueError names the suites that exist."""
    if name not in names():
        raise ValueError(f"--suite: got {name!r}, wanted one of {', '.join(names())}")
    return importlib.import_module(f"{_suites.__name__}.{name}")


def rows_of(name: str, setting: Setting) -> Iterator:
    """The rows of one suite."""
    yield from load(name).rows(setting)
