"""What people see. Everything goes to stderr (stdout belongs to `--json` and to what was asked for), masked."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from xpu_moe.launch.errors import INTERRUPTED, outcome
from xpu_moe.launch.secrets import Masker


def release_dead_streams() -> None:
    """At the end: what is still buffered for a reader that is gone goes nowhere.

    Else the interpreter fails to flush it while it shuts down and replaces the exit code by 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


class Console:
    """Prints one thought a line, with the seconds since the start. A stream that is gone is no reason to stop."""

    def __init__(self, masker: Masker | None = None, as_json: bool = False) -> None:
        self.masker = masker or Masker()
        self.json = as_json
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

    def failed(self, error: BaseException, argv: Sequence[str], advice: str = "") -> int:
        """One line on stderr, with `--json` one object on stdout too; returns the exit code."""
        code, text = outcome(error)
        text += advice if code == INTERRUPTED else ""
        self.plain(f"serve_minimax: {text}")
        if "--json" in argv[: argv.index("--") if "--" in argv else None]:
            self.out(json.dumps({"ok": False, "exit_code": code, "error": text}))
        return code

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
