"""Numbers that the measuring tools are given: within bounds, or a ValueError that names option, got and wanted.

The bounds are far beyond what one measures; they end a typing error before it costs an hour or a traceback.
"""

from __future__ import annotations

import re
from pathlib import Path

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


def free_memory() -> int:
    """Bytes that the kernel could give without swapping; 0 where it does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def shortage(ranks: int, largest: int, copies: int, free: int | None = None) -> str:
    """What CPU ranks need that hold `copies` of a message of `largest` bytes: "… GB of the … GB that are free", or ""
    where they fit or nobody knows. 250 MB a rank are torch."""
    free = free_memory() if free is None else free
    needed = ranks * (250 * 1000**2 + copies * largest)
    return f"{needed / 1e9:.1f} GB of the {free / 1e9:.1f} GB that are free" if free and needed > free else ""
