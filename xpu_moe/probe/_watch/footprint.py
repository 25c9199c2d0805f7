"""What a run leaves on the machine: its shared-memory files and its folder; found, recorded, removed.

A file under /dev/shm is this run's when one of its processes had it mapped or open and it was not there, by name and
inode, when the run began. Only such a file is removed, and only while name and inode are still the same. What a run
that was killed left behind is removed by the next one, from its record.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from xpu_moe import cache

SHM = Path("/dev/shm")
_PREFIX = "xpu_moe-probe-"


class Footprint:
    """The folder of a run and the shared-memory files of its processes."""

    def __init__(self) -> None:
        self._before = _listing()
        self._ours: dict[str, int] = {}
        self._guessed: dict[str, int] = {}  # named after a rank, seen with none: removed only when nobody holds it
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._record: Path | None = None
        with contextlib.suppress(cache.UnsafeCache, OSError):
            self._record = cache.folder("probe-runs") / f"{os.getpid()}-{_started(os.getpid())}.json"
        self._write()

    def observe(self, pids: Iterable[int]) -> None:
        """Record the shared-memory files that these processes, or their children, have mapped or open."""
        known = len(self._ours)
        for pid in pids:
            for name, inode in _shared(pid):
                if self._before.get(name) != inode:
                    self._ours[name] = inode
        for name, inode in _listing().items():  # made and closed between two looks: the name says whose it is
            if name not in self._before and name not in self._ours and _names_a_pid(name, pids):
                self._guessed[name] = inode
        if len(self._ours) != known:
            self._write()

    def remove(self) -> list[str]:
        """Remove everything of this run; returns the names of shared-memory files that were removed."""
        guessed = {name: inode for name, inode in self._guessed.items() if _mine_and_free(name)}
        gone = _unlink({**guessed, **self._ours})
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._record is not None:
            self._record.unlink(missing_ok=True)
        return gone

    def _write(self) -> None:
        if self._record is not None:
            with contextlib.suppress(OSError):
                text = json.dumps({"boot": _boot(), "folder": str(self.folder), "shm": self._ours})
                self._record.write_text(text, encoding="utf-8")


def sweep() -> list[str]:
    """Remove what runs whose process is gone had recorded; returns what was removed."""
    gone: list[str] = []
    try:
        records = sorted(cache.folder("probe-runs").glob("*.json"))
    except (cache.UnsafeCache, OSError):
        return gone
    for record in records:
        pid, _, started = record.stem.partition("-")
        if pid.isdigit() and _started(int(pid)) == started:
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(record.read_text(encoding="utf-8"))
            if data["boot"] == _boot():
                gone += _unlink(data["shm"])
            folder = Path(data["folder"])
            if folder.name.startswith(_PREFIX) and folder.is_dir() and folder.stat().st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(str(folder))
        record.unlink(missing_ok=True)
    return gone


def shared_memory_trouble(needed: int = 1 << 20) -> str:
    """Why `needed` bytes cannot be put into /dev/shm; "" where they can. Leaves no name there."""
    try:
        fd = os.open(SHM, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        return f"{SHM} cannot be written: {error.strerror}"
    try:
        os.posix_fallocate(fd, 0, needed)
    except OSError as error:
        free = os.statvfs(SHM)
        return f"{SHM} is full ({free.f_bavail * free.f_frsize} bytes free): {error.strerror}"
    finally:
        os.close(fd)
    return ""


def descendants(pid: int) -> list[int]:
    """A process and everything below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                found += descendants(int(child))
    return found


def _shared(pid: int, below: bool = True) -> Iterable[tuple[str, int]]:
    """(name, inode) of the files under /dev/shm that a process, and those below it, has mapped or open."""
    for each in descendants(pid) if below else [pid]:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/maps").read_text(errors="replace").splitlines():
                if "/dev/shm/" in line:
                    fields = line.split(maxsplit=5)
                    yield _name(fields[5]), int(fields[4])
        with contextlib.suppress(OSError):
            for fd in Path(f"/proc/{each}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(fd)
                    if target.startswith("/dev/shm/"):
                        yield _name(target), fd.stat().st_ino


def _mine_and_free(name: str) -> bool:
    """Whether a file under /dev/shm is this user's and no process has it mapped or open."""
    try:
        if (SHM / name).stat().st_uid != os.geteuid():
            return False
    except OSError:
        return False
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return not any(name == held for pid in pids for held, _ in _shared(pid, below=False))


def _name(path: str) -> str:
    return path.removeprefix("/dev/shm/").removesuffix(" (deleted)")


def _names_a_pid(name: str, pids: Iterable[int]) -> bool:
    return bool({int(number) for number in re.findall(r"\d+", name)} & set(pids))


def _listing() -> dict[str, int]:
    found = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHM):
            with contextlib.suppress(OSError):
                found[entry.name] = entry.inode()
    return found


def _unlink(files: dict[str, int]) -> list[str]:
    gone = []
    for name, inode in files.items():
        path = SHM / name
        with contextlib.suppress(OSError):
            if path.lstat().st_ino == inode:
                path.unlink()
                gone.append(name)
    return gone


def _started(pid: int) -> str:
    """Start time of a process in ticks since boot: with the pid it names a process for good. "" where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
