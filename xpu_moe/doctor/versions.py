"""Versions as tuples of numbers, and ranges of them (`>=0.31,<0.33`). Enough for the tables; needs no package."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"[vV]?(\d{1,9}(?:\.\d{1,9})*)")
_CLAUSE = re.compile(r"\s*(<=|>=|==|!=|<|>)\s*([\w.+*-]+)\s*\Z")


def parsed(version: str | None) -> tuple[int, ...] | None:
    """`0.31.0rc1+g1a2` -> (0, 31, 0); None where there is no leading number."""
    found = _NUMBERS.match(version.strip()) if version else None
    return tuple(int(part) for part in found.group(1).split(".")) if found else None


def within(version: str | None, ranges: str) -> bool | None:
    """Does `version` lie in `ranges`? None when the version is unknown. `==1.2.*` compares the given parts only."""
    have = parsed(version)
    if have is None:
        return None
    return all(_holds(have, clause) for clause in ranges.split(",") if clause.strip())


def _holds(have: tuple[int, ...], clause: str) -> bool:
    found = _CLAUSE.match(clause)
    if found is None:
        raise ValueError(f"version range: got {clause!r}, wanted an operator and a version such as >=0.31")
    sign, text = found.groups()
    want = parsed(text) or ()
    if text.endswith(".*"):
        same = have[: len(want)] == want
        return same if sign == "==" else not same
    width = max(len(have), len(want))
    left = have + (0,) * (width - len(have))
    right = want + (0,) * (width - len(want))
    return {
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
        "==": left == right,
        "!=": left != right,
    }[sign]
