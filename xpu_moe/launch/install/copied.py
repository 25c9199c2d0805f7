"""A checkout that cannot be written to (a read-only mount) is installed from a copy in the cache."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from xpu_moe import cache

_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
_ROOMS = ("xpu_moe", "cuda", "esimd")
_KEY = ".key"


def location() -> Path:
    """Where the copy is or will be."""
    return cache.location("checkout")


def make(project: Path) -> None:
    """Copy the parts of `project` that are installed."""
    target = cache.folder("checkout")
    (target / _KEY).unlink(missing_ok=True)
    for name in _FILES:
        shutil.copyfile(project / name, target / name)
    for room in _ROOMS:
        shutil.rmtree(target / room, ignore_errors=True)
        shutil.copytree(project / room, target / room, ignore=shutil.ignore_patterns("__pycache__"))


def done(project: Path) -> None:
    """Note that the copy of `project` as it is now has been installed."""
    (location() / _KEY).write_text(_key(project), encoding="ascii")


def is_current(project: Path) -> bool:
    """Whether what was installed from the copy is `project` as it is now (no `git pull` since)."""
    try:
        return (location() / _KEY).read_text(encoding="ascii") == _key(project)
    except OSError:
        return False


def _key(project: Path) -> str:
    found = hashlib.sha256()
    files = [project / name for name in _FILES]
    files += [path for room in _ROOMS for path in sorted((project / room).rglob("*")) if path.is_file()]
    for path in files:
        if "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(project)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()
