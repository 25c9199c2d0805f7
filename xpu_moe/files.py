"""Files to read that an argument names. Standard library only."""

from __future__ import annotations

import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)  # fmt: skip


def check_regular(option: str, path: Path, most: int, wanted: str = "a regular file") -> None:
    """Raise ValueError for what is no regular file (who reads a pipe or a device may wait for ever), and for more
    than `most` bytes; OSError for what is not there."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "no file")
        raise ValueError(f"{option}: got {str(path)!r}, which is {kind}, wanted {wanted}")
    if found.st_size > most:
        raise ValueError(f"{option}: got {str(path)!r} of {found.st_size} bytes, wanted {wanted} of at most {most}")
