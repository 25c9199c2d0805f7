"""Where the sources look, and reading that cannot fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Where:
    """`root` stands for `/`; `environ` is the engine's environment; `model` a checkpoint folder or None."""

    root: Path
    environ: Mapping[str, str]
    model: Path | None = None

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")


def text(path: Path, limit: int = 1 << 16) -> str | None:
    """The first `limit` bytes of a file, stripped; None when it cannot be read (entries of /sys vanish)."""
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None


def number(path: Path, base: int = 10) -> int | None:
    """The number in a file."""
    found = text(path, 64)
    try:
        return int(found.split()[0], base) if found else None
    except (ValueError, IndexError):
        return None


def entries(path: Path, pattern: str = "*") -> list[Path]:
    """The sorted entries of a folder that match; [] when it cannot be listed."""
    try:
        return sorted(path.glob(pattern))
    except OSError:
        return []


def known(facts: Mapping[str, object]) -> dict[str, object]:
    """Only the facts that have a value."""
    return {name: value for name, value in facts.items() if value is not None}
