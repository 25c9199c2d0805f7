"""How much memory this host has to give, asked before it is taken: Linux ends who takes more without a word."""

from __future__ import annotations

import re
from pathlib import Path


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
