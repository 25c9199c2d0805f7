"""What people see. Everything goes to stderr (stdout belongs to `--json` and to what was asked for), masked."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from xpu_moe import streams
from xpu_moe.launch.errors import INTERRUPTED, outcome
from xpu_moe.launch.secrets import Masker

_NAME = "serve_minimax"


class Console:
    """Prints one thought a line, with the seconds since the start. A stream that is gone is no reason to stop."""

    def __init__(self, masker: Masker | None = None, as_json: bool = False) -> None:
        self.masker = masker or Masker()
        self.json = as_json
        self.lost = 0  # `streams.emit`'s code of the first text that stdout did not take
        self.begun = time.monotonic()

    def say(self, text: str) -> None:
        """A line on stderr."""
        self.plain(f"[{time.monotonic() - self.begun:6.1f} s] {text}")

    def plain(self, text: str) -> None:
        """Text on stderr without the clock (blocks to copy)."""
        streams.warn(self.masker.text(text))

    def out(self, text: str) -> int:
        """Text on stdout: 0, or `streams.emit`'s code where it is lost."""
        if not self.lost:  # said once
            self.lost = streams.emit(_NAME, self.masker.text(text))
        return self.lost

    def failed(self, error: BaseException, argv: Sequence[str], advice: str = "") -> int:
        """One line on stderr, with `--json` one object on stdout too; returns the exit code, also where it is lost."""
        code, text = outcome(error)
        text += advice if code == INTERRUPTED else ""
        self.plain(f"{_NAME}: {text}")
        if streams.asked_for_json(argv):
            self.out(json.dumps({"ok": False, "exit_code": code, "error": text, "cannot": text}))
        return code

    def result(self, text: str) -> None:
        """What was asked for, for people: stdout, or stderr where stdout belongs to one JSON object."""
        if self.json:
            self.plain(text)
        else:
            self.out(text)
