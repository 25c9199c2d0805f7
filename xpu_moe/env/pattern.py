"""Patterns of values, as the rows' cautions, conflicts and needs write them.

*          any value            0, ring, …   exactly this (letters in either case)
>1  <1     as a number          !topo        anything but this
other      neither 0 nor 1      !default     anything but the row's default
~part      holds this text      !~part       does not hold it
"""

from __future__ import annotations

from collections.abc import Mapping


def matches(pattern: str, taken: str, default: str | None = None) -> bool:
    """Whether the value that a library took fits a pattern."""
    value = taken.strip().lower()
    if pattern == "*":
        return True
    if pattern == "other":
        return value not in ("0", "1")
    if pattern == "!default":
        return value != (default or "").lower()
    if pattern[0] in "<>" and pattern[1:].isdigit():
        number = _number(value)
        return number is not None and (number > int(pattern[1:]) if pattern[0] == ">" else number < int(pattern[1:]))
    if pattern.startswith("!"):
        return not matches(pattern[1:], taken, default)
    if pattern.startswith("~"):
        return pattern[1:].lower() in value
    return value == pattern.lower()


def holds(setting: str, environ: Mapping[str, str]) -> str | None:
    """The `NAME=VALUE` of the environment that fulfils `NAME` or `NAME=PATTERN` (NAME may end in `*`), else None.

    Values are compared as the library takes them.
    """
    from xpu_moe.env.parse import interpret

    name, _, pattern = setting.partition("=")
    names = [n for n in environ if n.startswith(name[:-1])] if name.endswith("*") else [name]
    for candidate in names:
        value = environ.get(candidate)
        if value is not None and (not pattern or matches(pattern, interpret(candidate, value).taken or "")):
            return f"{candidate}={value}"
    return None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
