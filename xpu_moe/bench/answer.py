"""What a measuring tool says: its answer on stdout, or why it has none. Needs no torch.

A tool whose answer nobody took ends with a code of its own, whatever it measured: CLOSED where the reader went
(`… | head`; as a shell names SIGPIPE), LOST where the system refused to write (a full disk).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys

CLOSED, LOST = 128 + signal.SIGPIPE, os.EX_IOERR  # 141, 74
BAD_ARGUMENT = 2


def emit(tool: str, text: str) -> int:
    """Print and flush a whole answer. 0, or CLOSED or LOST with a line on stderr."""
    if sys.stdout is None:  # `>&-`
        warn(f"{tool}: the answer is lost: stdout is closed")
        return LOST
    try:
        print(text, flush=True)
    except OSError as error:
        with contextlib.suppress(OSError):  # what is still buffered would fail again while the interpreter ends
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        closed = error.errno == errno.EPIPE
        reason = "the reader of stdout has gone" if closed else f"stdout: {error.strerror or error}"
        warn(f"{tool}: the answer is lost: {reason}")
        return CLOSED if closed else LOST
    return 0


def refuse(tool: str, text: str, as_json: bool, code: int = BAD_ARGUMENT) -> int:
    """Say on stderr, and with `as_json` as {"ok": false, "cannot": text} on stdout, why nothing was run: `code`."""
    warn(f"{tool}: {text}")
    return (emit(tool, json.dumps({"ok": False, "cannot": text})) if as_json else 0) or code


def warn(text: str) -> None:
    """A line on stderr; one that nobody can read is no reason to stop."""
    with contextlib.suppress(OSError, AttributeError):
        print(text, file=sys.stderr, flush=True)
