"""The watched side: events to the parent, and dying with it. Imports nothing heavy."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


class Events:
    """The pipe to the parent."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def emit(self, event: str, **fields: Any) -> None:
        data = json.dumps({"event": event, **fields}).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]


def die_with(parent: int) -> None:
    """Be killed when the parent ends, however it ends; leave at once if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def be_watched(parent: int, stack: Path) -> None:
    """Die with the parent, leave SIGINT to it, and write the Python stack into `stack` on SIGUSR1."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, file=stack.open("w"), all_threads=False)
