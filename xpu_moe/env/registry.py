"""Every variable, collected from the data modules of this folder (each has a tuple `VARIABLES`)."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import xpu_moe.env as _room
from xpu_moe.env.variable import Variable

_MACHINERY = frozenset({"variable", "registry", "read"})


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


def lookup(name: str) -> Variable:
    """The row of `name`; KeyError names what is missing."""
    try:
        return registry()[name]
    except KeyError:
        raise KeyError(f"environment variable {name} is not in the registry (xpu_moe/env)") from None
