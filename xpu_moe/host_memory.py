"""How much memory this host has to give, asked before it is taken: Linux ends who takes more without a word."""

from __future__ import annotations

import re
from pathlib import Path

# a memory limit of the container or unit that this process is in, and what is used of it
_LIMITS = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"),
    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_memory() -> int:
    """Bytes that the kernel could give without swapping; 0 where it does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def available(root: Path = Path("/")) -> int:
    """Bytes that can still be taken, inside of this process's memory limit too; 0 where nobody knows."""
    free = free_memory()
    for limit, used in _LIMITS:
        most, now = _number(root / limit), _number(root / used)
        if most is not None and now is not None:
            free = min(free, max(0, most - now))
    return free


def shortage(ranks: int, largest: int, copies: int, free: int | None = None) -> str:
    """What CPU ranks need that hold `copies` of a message of `largest` bytes: "… GB of the … GB that are free", or ""
    where they fit or nobody knows. 250 MB a rank are torch."""
    free = free_memory() if free is None else free
    needed = ranks * (250 * 1000**2 + copies * largest)
    return f"{needed / 1e9:.1f} GB of the {free / 1e9:.1f} GB that are free" if free and needed > free else ""


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None
