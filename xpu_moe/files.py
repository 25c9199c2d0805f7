"""Files and folders that an argument names, to read or to write: looked at before any work. Standard library only."""

from __future__ import annotations

import errno
import importlib.util
import os
import stat
from pathlib import Path
from typing import TextIO

_KINDS = (
    (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)  # fmt: skip


def check_regular(option: str, path: Path, most: int, wanted: str = "a regular file") -> None:
    """Raise ValueError for what is no regular file (who reads a pipe or a device may wait for ever), and for more
    than `most` bytes; OSError for what is not there."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{option}: got {str(path)!r}, which is {_kind(found.st_mode)}, wanted {wanted}")
    if found.st_size > most:
        raise ValueError(f"{option}: got {str(path)!r} of {found.st_size} bytes, wanted {wanted} of at most {most}")


def check_picture(option: str, path: Path | None, suffixes: tuple[str, ...] = (".png",)) -> None:
    """Raise ValueError where a picture could not be written to `path`: another suffix, no folder, a pipe or a device
    (who writes there may wait for ever), no permission, no matplotlib."""
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"{option}: matplotlib is not installed (pip install matplotlib)")
    kinds = " or ".join(suffixes)
    wanted = f"wanted a {kinds} file in a folder that exists"
    if path.suffix not in suffixes:
        raise ValueError(f"{option}: got {str(path)!r}, {wanted}")
    there = _stat(option, path, wanted)
    if there is None and not _is_folder(_stat(option, path.parent, wanted)):
        raise ValueError(f"{option}: got {str(path)!r}, {wanted}")
    if there is not None and not stat.S_ISREG(there.st_mode):
        raise ValueError(f"{option}: got {str(path)!r}, which is {_kind(there.st_mode)}, {wanted}")
    _check_permission(option, path if there is not None else path.parent, path, f"wanted a {kinds} file that may")


def open_other(option: str, path: Path | None) -> TextIO | None:
    """A pipe or a device that is to be written into, opened without waiting; None for a file, there or not.

    Raises ValueError for a pipe that nobody reads (who opens it would wait), a socket, a folder; OSError for what may
    not be written. Opened before the work and kept: a reader of a pipe goes when its last writer does.
    """
    if path is None or not path.exists() or path.is_file():
        return None
    kind, wanted = _kind(path.stat().st_mode), "wanted a file, or a pipe that somebody reads"
    if kind not in ("a pipe", "a device"):
        raise ValueError(f"{option}: got {str(path)!r}, which is {kind}, {wanted}")
    try:
        number = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise ValueError(f"{option}: got {str(path)!r}, {kind} that nobody reads, {wanted}") from None
    os.set_blocking(number, True)
    return os.fdopen(number, "w", encoding="utf-8")


def check_folder(option: str, path: Path | None) -> None:
    """Raise ValueError where files could not be written into a folder `path`: one that exists, or a new one in it."""
    if path is None:
        return
    wanted = "wanted a folder, or the name of a new one in a folder that exists"
    for above in (path, *path.parents):
        there = _stat(option, above, wanted)
        if there is not None:
            if not stat.S_ISDIR(there.st_mode):
                which = "which" if above == path else repr(str(above))
                raise ValueError(f"{option}: got {str(path)!r}: {which} is {_kind(there.st_mode)}, {wanted}")
            if above not in (path, path.parent):
                raise ValueError(f"{option}: got {str(path)!r}: there is no {str(path.parent)!r}; {wanted}")
            return _check_permission(option, above, path, "wanted a folder that may")


def _check_permission(option: str, where: Path, path: Path, wanted: str) -> None:
    if not os.access(where, os.W_OK):
        raise ValueError(f"{option}: got {str(path)!r}, which may not be written, {wanted}")


def _stat(option: str, path: Path, wanted: str) -> os.stat_result | None:
    """None where nothing is there. Raises ValueError for a name that the system refuses (too long, no access)."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"{option}: got {str(path)[:200]!r}: {error.strerror}; {wanted}") from None


def _is_folder(found: os.stat_result | None) -> bool:
    return found is not None and stat.S_ISDIR(found.st_mode)


def _kind(mode: int) -> str:
    return next((name for is_kind, name in (*_KINDS, (stat.S_ISREG, "a file")) if is_kind(mode)), "no file")
