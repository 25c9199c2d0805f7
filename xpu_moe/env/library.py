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
    """The oneCCL library that this process has loaded, else the one in this environment's lib folder, else None."""
    for path in (*loaded("libccl.so"), *sorted((Path(sys.prefix) / "lib").glob("libccl.so*"))):
        if path.is_file():
            return path
    return None


@cache
def knows(library: Path, name: str) -> bool:
    """Whether a library's bytes hold a variable's name, whole: then it reads it."""
    with library.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return re.search(rb"(?<![A-Z0-9_])" + name.encode() + rb"(?![A-Z0-9_])", data) is not None


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
