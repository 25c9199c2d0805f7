"""The cache folder: compiled kernels, tool environments, probe verdicts.

What lies there is loaded as code, so the folder is owned by the user with mode 0700, and one that somebody else owns
or that others may write to is refused.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from pathlib import Path

from xpu_moe.env import read

# Folders that programs of every user share: whatever their mode is here, none of them is to be closed.
_SHARED = frozenset(
    map(Path, ("/", "/tmp", "/var/tmp", "/dev/shm", "/home", "/mnt", "/opt", "/run", "/srv", "/usr", "/var"))
)
_YOURS = "set XPU_MOE_CACHE to a folder of yours"


class UnsafeCache(RuntimeError):
    """The cache folder could be written to by somebody else, or cannot be made."""


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
    try:
        return root.expanduser().absolute().joinpath(*parts)
    except RuntimeError:  # ~name of nobody
        raise UnsafeCache(f"cache folder {root}: there is no home folder {root.parts[0]}; {_YOURS}") from None


def _private(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except FileExistsError:
        raise UnsafeCache(f"cache folder {path}: there is something else of that name, no folder; {_YOURS}") from None
    except OSError as error:
        raise UnsafeCache(f"cache folder {path}: {error.strerror}; {_YOURS}") from None
    if found.st_uid != os.geteuid():
        what = f"owned by uid {found.st_uid}, wanted {os.geteuid()}"
        raise UnsafeCache(f"cache folder {path}: {what}; {_instead(path, found)}")
    if stat.S_IMODE(found.st_mode) & 0o022:
        what = f"mode {stat.S_IMODE(found.st_mode):04o} lets others write"
        raise UnsafeCache(
            f"cache folder {path}: {what}; {_instead(path, found) if _alien(path, found) else _chmod(path)}"
        )


def _alien(path: Path, found: os.stat_result) -> bool:
    """Whether a folder may serve others too, so that its mode is not to be changed for us: a shared one, or a root of
    the user's choice that holds something already. The default one is ours, and so is what lies in a root."""
    if found.st_mode & stat.S_ISVTX or path.resolve() in _SHARED:
        return True
    return bool(read.text("XPU_MOE_CACHE")) and path == location() and any(path.iterdir())


def _instead(path: Path, found: os.stat_result) -> str:
    """What to do where the folder is to stay as it is. In a sticky one nobody else may replace a folder of ours."""
    if not found.st_mode & stat.S_ISVTX:
        return f"{_YOURS}, new or empty"
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a user id without a name, as some containers give
        user = str(os.geteuid())
    return f"{_YOURS} in it, such as {path / f'xpu_moe-{user}'}"


def _chmod(path: Path) -> str:
    return f"run: chmod 700 {shlex.quote(str(path))}"
