"""The cache folder: compiled kernels, tool environments, probe verdicts.

What lies there is loaded as code, so the folder is owned by the user with mode 0700, and one that somebody else owns
or that others may write to is refused.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from xpu_moe.env import read


class UnsafeCache(RuntimeError):
    """The cache folder could be written to by somebody else."""


def folder(*parts: str) -> Path:
    """The cache folder (XPU_MOE_CACHE, else XDG's), or a folder in it; made with mode 0700. Raises UnsafeCache."""
    path = location()
    _private(path)
    for part in parts:
        path = path / part
        _private(path)
    return path


def location(*parts: str) -> Path:
    """Where `folder(*parts)` is; nothing is made or checked. Raises UnsafeCache where there is no home folder."""
    chosen = read.text("XPU_MOE_CACHE")
    try:
        root = Path(chosen) if chosen else Path(read.text("XDG_CACHE_HOME") or Path.home() / ".cache") / "xpu_moe"
    except RuntimeError:  # a user id without a home, as some containers give
        raise UnsafeCache("cache folder: this user has no home folder; set XPU_MOE_CACHE to a folder") from None
    return root.expanduser().absolute().joinpath(*parts)


def _private(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise UnsafeCache(f"cache folder {path}: {error.strerror}; set XPU_MOE_CACHE to a folder of yours") from None
    if found.st_uid != os.geteuid():
        raise UnsafeCache(f"cache folder {path}: owned by uid {found.st_uid}, wanted {os.geteuid()}; set XPU_MOE_CACHE")
    if stat.S_IMODE(found.st_mode) & 0o022:
        mode = stat.S_IMODE(found.st_mode)
        raise UnsafeCache(f"cache folder {path}: mode {mode:04o} lets others write; run: chmod 700 {path}")
