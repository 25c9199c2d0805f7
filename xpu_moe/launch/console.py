"""What people see. Everything goes to stderr (stdout belongs to `--json` and to what was asked for), masked."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TextIO

from xpu_moe.launch.secrets import Masker


class Console:
    """Prints one thought a line, with the seconds since the start. A stream that is gone is no reason to stop."""

    def __init__(self, masker: Masker | None = None, json: bool = False) -> None:
        self.masker = masker or Masker()
        self.json = json
        self.begun = time.monotonic()

    def say(self, text: str) -> None:
        """A line on stderr."""
        self._print(f"[{time.monotonic() - self.begun:6.1f} s] {text}", sys.stderr)

    def plain(self, text: str) -> None:
        """Text on stderr without the clock (blocks to copy)."""
        self._print(text, sys.stderr)

    def out(self, text: str) -> None:
        """Text on stdout."""
        self._print(text, sys.stdout)

    def result(self, text: str) -> None:
        """What was asked for, for people: stdout, or stderr where stdout belongs to one JSON object."""
        self._print(text, sys.stderr if self.json else sys.stdout)

    def _print(self, text: str, stream: TextIO) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(self.masker.text(text), file=stream, flush=True)


def tolerant_streams() -> None:
    """Let a path that is no valid text, or a terminal that knows few characters, not end a launch."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
            reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
