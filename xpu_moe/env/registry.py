"""Every variable, collected from the data modules of this folder (each has a tuple `VARIABLES`)."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache

import xpu_moe.env as _room
from xpu_moe.env.variable import Variable

# Modules of this folder that hold code, no rows.
_MACHINERY = frozenset(
    {"variable", "registry", "read", "parse", "pattern", "versions", "library", "profiles", "judge", "show", "cards"}
)


@cache
def registry() -> dict[str, Variable]:
    """Name -> row. Raises ValueError when two data modules hold the same name."""
    found: dict[str, Variable] = {}
    for module in pkgutil.iter_modules(_room.__path__):
        if module.name in _MACHINERY or module.name.startswith("_"):
            continue
        rows = getattr(importlib.import_module(f"{_room.__name__}.{module.name}"), "VARIABLES", ())
        for row in rows:
            if row.name in found:
                raise ValueError(f"env registry: {row.name} stands twice, the second time in {module.name}.py")
            found[row.name] = row
    return found


@cache
def _families() -> tuple[Variable, ...]:
    """Rows whose name ends in `*`, the longest first."""
    rows = [row for row in registry().values() if row.name.endswith("*")]
    return tuple(sorted(rows, key=lambda row: -len(row.name)))


def find(name: str) -> Variable | None:
    """The row of `name`, or that of the family it belongs to; None where the registry knows neither."""
    row = registry().get(name)
    return row or next((family for family in _families() if name.startswith(family.name[:-1])), None)


def lookup(name: str) -> Variable:
    """The row of `name`; KeyError names what is missing."""
    row = find(name)
    if row is None:
        near = difflib.get_close_matches(name.upper(), registry(), n=3, cutoff=0.8)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise KeyError(f"environment variable {name} is not in the registry (docs/environment.md){hint}")
    return row
