"""Shared memory of a run: which files in /dev/shm our processes made, and removing just those.

A name alone proves nothing (two servers choose alike), so a file is ours only if it was not there before, a process of
ours has it mapped or open, and its inode is still the recorded one when it is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

SHM = Path("/dev/shm")


class Ledger:
    """The /dev/shm files of one run."""

    def __init__(self, root: Path = SHM) -> None:
        self._root = root
        self._before = set(_inodes(root).values())
        self._ours: dict[str, tuple[int, int]] = {}

    def record(self, pids: Iterable[int]) -> None:
        """Note what these processes have mapped or open now."""
        present = _inodes(self._root)
        used = {name for pid in pids for name in _used_by(pid, self._root)}
        for name in used:
            inode = present.get(name)
            if inode is not None and inode not in self._before:
                self._ours[name] = inode

    def remove(self) -> list[str]:
        """Unlink what is ours and still there; the names that were removed."""
        removed = []
        for name, inode in self._ours.items():
            with contextlib.suppress(OSError):
                found = (self._root / name).stat()
                if (found.st_dev, found.st_ino) == inode and found.st_uid == os.geteuid():
                    (self._root / name).unlink()
                    removed.append(name)
        return removed


def _inodes(root: Path) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(root):
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                found[entry.name] = (info.st_dev, info.st_ino)
    return found


def _used_by(pid: int, root: Path) -> set[str]:
    names: set[str] = set()
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
        names.update(re.findall(rf" {re.escape(str(root))}/([^/\n]+)$", text, re.MULTILINE))
    with contextlib.suppress(OSError):
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor.path)
                if os.path.dirname(target) == str(root):
                    names.add(os.path.basename(target))
    return names
