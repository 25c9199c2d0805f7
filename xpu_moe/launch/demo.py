"""The demo checkpoint of `--demo`: made once in the cache folder, by the demo room's own tool."""

from __future__ import annotations

import sys
from pathlib import Path

from xpu_moe import cache
from xpu_moe.demo import owned
from xpu_moe.demo.write import twin_of
from xpu_moe.env import read
from xpu_moe.launch import tool
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import ENVIRONMENT, LaunchError

NAME = "minimax-m2-auto-round"


def planned() -> Path:
    """Where the checkpoint is or will be."""
    return cache.location("demo", NAME)


def ensure(console: Console) -> Path:
    """The checkpoint, written where it is missing and anew where it is not as written, which is said.

    LaunchError(ENVIRONMENT) in one line, for a full disk, or for files in its place that the tool did not write.
    """
    try:
        folder = cache.folder("demo") / NAME
    except cache.UnsafeCache as error:
        raise LaunchError(ENVIRONMENT, str(error)) from None
    console.say(f"demo: a tiny random MiniMax-M2 in AutoRound INT4, in {folder}")
    command = [sys.executable, "-m", "xpu_moe.demo", "--quant", "auto-round", "--repair", str(folder)]
    code, output = tool.run(command, read.snapshot())
    lines = output.strip().splitlines() or ["no output"]
    if code:
        why = _foreign(folder)
        raise LaunchError(ENVIRONMENT, why or lines[-1][:500])
    for line in lines:
        if line.startswith("demo: "):
            console.say(line)
    return folder


def _foreign(folder: Path) -> str | None:
    """What stands in the way of the demo and was not written by its tool, and what to do; else None."""
    for place in (folder, twin_of(folder)):
        try:
            why = owned.refusal(place, repair=True)
        except OSError as error:
            why = f"{place}: {error.strerror}"
        if why:
            return f"demo: {why}; move {place} away, or set XPU_MOE_CACHE to another folder"
    return None
