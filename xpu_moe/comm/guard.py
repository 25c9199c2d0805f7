"""A last bound on a call that may never return, for libraries that have no timeout of their own."""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Iterator

from xpu_moe import streams


@contextlib.contextmanager
def bounded(seconds: float, what: str) -> Iterator[None]:
    """End the process with all its stacks on stderr when the block does not end in time (exit code 1).

    The watching thread needs no interpreter lock, so it works inside a library that never gives it back. One at a time
    in a process; for processes that are ours to end (probes, our own ranks), not for a server.
    """
    streams.warn(f"xpu_moe: {what} is given {seconds:g} s")
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
