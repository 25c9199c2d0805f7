"""Numbers that the tools are given: within bounds, or a ValueError that names option, got and wanted.

The bounds are far beyond what one measures; they end a typing error before it costs an hour or a traceback.
"""

from __future__ import annotations

ROUNDS = 10_000
TOKENS = 1 << 17  # M: the longest steps of serving
SEED = (1 << 63) - 1  # suites add to it; torch takes up to 2**64 - 1
PORT = 65535
LIMIT_S = 7 * 86400.0


def whole(option: str, got: int, least: int, most: int) -> int:
    """`got`, within [least, most]."""
    if not least <= got <= most:
        raise ValueError(f"{option}: got {got}, wanted a whole number from {least} to {most}")
    return got


def seconds(option: str, got: float) -> float:
    """`got`, above 0 and at most a week (a timer takes no more)."""
    if not 0 < got <= LIMIT_S:
        raise ValueError(f"{option}: got {got:g}, wanted seconds: more than 0, at most {LIMIT_S:g}")
    return got


def listed(option: str, text: str, most: int) -> tuple[int, ...]:
    """The whole numbers from 1 to `most` of a comma-separated list."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= 20 and 1 <= int(part) <= most):
            raise ValueError(f"{option}: got {text!r}, wanted whole numbers from 1 to {most}, comma separated")
    return tuple(map(int, parts))
