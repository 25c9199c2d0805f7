"""The demo checkpoint of `--demo`: made once in the cache folder, by the demo room's own tool."""

from __future__ import annotations

import sys
from pathlib import Path

from xpu_moe import cache
from xpu_moe.env import read
from xpu_moe.launch import tool
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import ENVIRONMENT, LaunchError

NAME = "minimax-m2-auto-round"


def planned() -> Path:
    """Where the checkpoint is or will be."""
    return cache.location("demo", NAME)


def ensure(console: Console) -> Path:
    """The checkpoint, written where it is missing; LaunchError(ENVIRONMENT) in one line, a full disk for example."""
    try:
        folder = cache.folder("demo") / NAME
    except cache.UnsafeCache as error:
        raise LaunchError(ENVIRONMENT, str(error)) from None
    console.say(f"demo: a tiny random MiniMax-M2 in AutoRound INT4, in {folder}")
    command = [sys.executable, "-m", "xpu_moe.demo", "--quant", "auto-round", str(folder)]
    code, output = tool.run(command, read.snapshot())
    if code:
        lines = output.strip().splitlines() or ["no output"]
        raise LaunchError(ENVIRONMENT, lines[-1][:500])
    return folder
