"""The rules, one file a kind of fault. Adding a file with a `RULE` adds the rule."""

from __future__ import annotations

import importlib
import pkgutil

from xpu_moe.doctor.rules.base import Rule

_MACHINERY = frozenset({"base", "context", "moderation"})


def _found() -> tuple[Rule, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _MACHINERY)
    return tuple(importlib.import_module(f"{__name__}.{name}").RULE for name in names)


RULES: tuple[Rule, ...] = _found()
