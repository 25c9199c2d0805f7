"""Printing an answer on stdout, whose reader may have gone (`… | head`)."""

from __future__ import annotations

import contextlib
import os
import sys


def say(text: str) -> None:
    """Print and flush; a closed pipe is the reader's choice, not an error."""
    try:
        print(text)
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
