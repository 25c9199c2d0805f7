"""Versions in facts: are they one, and do they lie in a range (as xpu_moe.env compares them: by series)?"""

from __future__ import annotations

import re

from xpu_moe.env.versions import satisfies

_NUMBERS = re.compile(r"[vV]?([0-9]{1,9}(?:\.[0-9]{1,9})*)")


def parsed(version: str | None) -> tuple[int, ...] | None:
    """`0.31.0rc1+g1a2` -> (0, 31, 0); None where there is no leading number."""
    found = _NUMBERS.match(version.strip()) if version else None
    return tuple(int(part) for part in found.group(1).split(".")) if found else None


def within(version: str | None, ranges: str) -> bool | None:
    """Does `version` lie in `ranges` (`>=0.31,<0.33`)? None when it is unknown. `==2022.1` holds for 2022.1.2."""
    found = parsed(version)
    return None if found is None else satisfies(".".join(map(str, found)), ranges)
