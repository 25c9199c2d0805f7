"""What the libraries on the disk and in the process say of themselves: the loaded version is the fact."""

from __future__ import annotations

import importlib.util
import mmap
import re
import sys
from functools import cache
from pathlib import Path


def loaded(part: str, pid: int | str = "self") -> list[Path]:
    """Files mapped into a process whose name holds `part` (`libccl`), in the order of the map."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    paths = [line.split(maxsplit=5)[5] for line in lines if line.count("/") and len(line.split(maxsplit=5)) == 6]
    return [Path(path) for path in dict.fromkeys(paths) if part in Path(path).name]


def oneccl() -> Path | None:
    """The oneCCL library that this process has loaded, else the one in this environment's lib folder, else None.

    Releases from 2022 on ship a thin libccl.so.2 beside the one that reads the variables: the latter is meant.
    """
    for path in (*loaded("libccl"), *sorted((Path(sys.prefix) / "lib").glob("libccl.so*"))):
        if path.is_file() and knows(path, "CCL_WORKER_COUNT"):
            return path
    return None


def knows(library: Path, name: str) -> bool:
    """Whether a oneCCL library holds a variable's name as a string of its own: then it reads it."""
    return name in _names(library)


@cache
def _names(library: Path) -> frozenset[str]:
    """The CCL_ strings of a library (hundreds of MB: searched for the byte before a string, not by a pattern)."""
    found = set()
    with library.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(b"\0CCL_")
        while at >= 0:
            match = re.match(rb"(CCL_[A-Z0-9_]+)\0", data[at + 1 : at + 80])
            if match:
                found.add(match.group(1).decode())
            at = data.find(b"\0CCL_", at + 1)
    return frozenset(found)


@cache
def vllm_names() -> frozenset[str] | None:
    """The variables that the installed vLLM's envs.py names, without importing it; None without vLLM."""
    spec = importlib.util.find_spec("vllm")
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders:
        return None
    try:
        text = (Path(next(iter(folders))) / "envs.py").read_text(encoding="utf-8")
    except OSError:
        return None
    return frozenset(re.findall(r"\bVLLM_[A-Z0-9_]+", text))
