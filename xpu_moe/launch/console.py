"""What people see. Everything goes to stderr (stdout belongs to `--json` and to what was asked for), masked."""

from __future__ import annotations

import sys
import time

from xpu_moe.launch.secrets import Masker


class Console:
    """Prints one thought a line, with the seconds since the start."""

    def __init__(self, masker: Masker | None = None, json: bool = False) -> None:
        self.masker = masker or Masker()
        self.json = json
        self.begun = time.monotonic()

    def say(self, text: str) -> None:
        """A line on stderr."""
        seconds = time.monotonic() - self.begun
        print(f"[{seconds:6.1f} s] {self.masker.text(text)}", file=sys.stderr, flush=True)

    def plain(self, text: str) -> None:
        """Text on stderr without the clock (blocks to copy)."""
        print(self.masker.text(text), file=sys.stderr, flush=True)

    def out(self, text: str) -> None:
        """Text on stdout."""
        print(self.masker.text(text), flush=True)

    def result(self, text: str) -> None:
        """What was asked for, for people: stdout, or stderr where stdout belongs to one JSON object."""
        print(self.masker.text(text), file=sys.stderr if self.json else sys.stdout, flush=True)
