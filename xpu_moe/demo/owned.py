"""Which files of a folder this tool wrote: the marker lists them with size and hash. No other file is ever removed."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARKER = ".xpu_moe_demo.json"
FORMAT = 2  # 1 listed no files
_NAMED = 3  # so many files in a message
_ALWAYS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


class NotOurs(RuntimeError):
    """The target folder holds something that this tool did not write."""


@dataclass(frozen=True)
class Survey:
    """The names in a folder, the marker left out; `changed`: a name of ours with another content than was written."""

    intact: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether all that was written is there as it was written."""
        return bool(self.intact) and not self.changed and not self.missing


def seal(folder: Path, settings: dict[str, Any]) -> None:
    """Write the marker of a folder that is complete: its settings, and the files that lie in it."""
    files = {file.name: _stamp(file) for file in sorted(folder.iterdir())}
    (folder / MARKER).write_text(json.dumps({**settings, "files": files}, indent=1), encoding="utf-8")


def read(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file, None where there is none. A link is none: it may lead to a file of somebody else's."""
    try:
        regular = stat.S_ISREG(file.lstat().st_mode)
        found = json.loads(file.read_text(encoding="utf-8")) if regular else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def settings(folder: Path) -> dict[str, Any] | None:
    """What `seal` was given for a folder; None without a marker."""
    marker = read(folder / MARKER)
    return None if marker is None else {key: value for key, value in marker.items() if key != "files"}


def survey(folder: Path) -> Survey:
    """Looks at every name in `folder`, and reads those files that the marker names."""
    known = _known(folder)
    kinds: dict[str, list[str]] = {"intact": [], "changed": [], "foreign": []}
    for path in sorted(folder.iterdir()):
        if path.name == MARKER and known is not None:
            continue
        is_folder = path.is_dir() and not path.is_symlink()
        if known is None or path.name not in known:
            kinds["foreign"].append(path.name + "/" * is_folder)
        else:
            kinds["intact" if _is_as_written(path, known[path.name]) else "changed"].append(path.name)
    seen = {*kinds["intact"], *kinds["changed"]}
    missing = tuple(name for name in known or () if name not in seen)
    return Survey(tuple(kinds["intact"]), tuple(kinds["changed"]), tuple(kinds["foreign"]), missing)


def refusal(target: Path, repair: bool = False) -> str | None:
    """Why `target` is not to be replaced, None where it may be. With `repair` changed files are no reason."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        return f"{target}: exists and is no folder"
    if not target.exists():
        return None
    found = survey(target)
    if found.foreign:
        return f"{target}: holds {some(found.foreign)}, not written by this tool"
    if found.changed and not repair:
        old = (settings(target) or {}).get("format") == 1
        why = "of an earlier version, which noted no sizes" if old else "changed since this tool wrote it"
        return f"{target}: {some(found.changed)}: {why}"
    return None


def discard(folder: Path) -> bool:
    """Remove what this tool wrote and nothing else; False where something stays, and the folder with it."""
    with suppress(OSError):
        found = survey(folder)
        for name in found.intact:
            (folder / name).unlink()
        if not found.changed and not found.foreign:
            (folder / MARKER).unlink(missing_ok=True)
            folder.rmdir()  # refuses where a file has come meanwhile
    return not folder.exists()


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = len(listed) - _NAMED
    return ", ".join(listed[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _known(folder: Path) -> dict[str, Any] | None:
    """What the marker lists; None without a marker."""
    marker = read(folder / MARKER)
    if marker is None:
        return None
    if isinstance(marker.get("files"), dict):
        return marker["files"]
    # Format 1: the names are known, what was in them is not, so that all count as changed.
    shards = marker["shards"] if isinstance(marker.get("shards"), int) and not marker.get("config_only") else 0
    weights = [f"model-{shard + 1:05d}-of-{shards:05d}.safetensors" for shard in range(min(shards, 1 << 12))]
    return dict.fromkeys((*_ALWAYS, *weights, *(["model.safetensors.index.json"] if shards else [])))


def _stamp(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _is_as_written(path: Path, stamp: Any) -> bool:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or not isinstance(stamp, dict) or found.st_size != stamp.get("size"):
        return False  # its size alone tells, unread
    return _stamp(path) == stamp
