"""The only place in xpu_moe that reads the process environment.

A value that does not parse is an error that names the variable, the value and the accepted forms: a typo that silently
becomes the default is what the registry exists to prevent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from xpu_moe.env.registry import lookup

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


class BadValue(ValueError):
    """An environment value that its variable does not accept."""


def snapshot() -> dict[str, str]:
    """A copy of the whole process environment (for child processes, `--diff` and the doctor)."""
    return dict(os.environ)


def export(name: str, value: str) -> str:
    """Set a registered variable in this process unless the user has; returns the value in force.

    For a child of ours whose libraries read it at load. A value of the user's is never overwritten.
    """
    return os.environ.setdefault(lookup(name).name, value)


def text(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The raw value of a registered variable, its default where unset. An empty one names none of its choices."""
    row = lookup(name)
    value = (os.environ if environ is None else environ).get(name)
    if value is None:
        return row.default
    if row.choices and value not in ("", *row.choices):
        raise BadValue(f"{name}={value!r}: accepted values are {', '.join(row.choices)}")
    return value


def flag(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """A registered on/off variable. Accepts 1/0, true/false, yes/no, on/off."""
    value = (text(name, environ) or "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise BadValue(f"{name}={value!r}: wanted 1 or 0 (or true/false, yes/no, on/off)")


def integer(name: str, environ: Mapping[str, str] | None = None) -> int | None:
    """A registered whole number; None where unset without a default. No suffixes: 4G is an error, not 4."""
    value = text(name, environ)
    if value is None or value == "":
        return None
    try:
        return int(value)
    except ValueError:
        raise BadValue(f"{name}={value!r}: wanted a whole number, digits only") from None
