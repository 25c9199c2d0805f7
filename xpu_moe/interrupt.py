"""Ctrl-C while a tool is still importing what it is made of: one line and 130, as from its first line of work on.

It is set up before a tool's other imports, which take most of a start; so this imports next to nothing.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType


class Interrupt(KeyboardInterrupt):
    """Ctrl-C. A type of its own: Python remembers a plain one that passes through an `exec` of text (a dataclass that
    is being made), and then dies by the signal at its end, although somebody caught it."""


def expected(tool: str) -> None:
    """From here on a Ctrl-C that nobody catches ends the process with 130 and "TOOL: interrupted".

    Raises ValueError outside the main thread. A SIGINT that is ignored (behind a shell's `&`) stays so.
    """

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            return sys.__excepthook__(kind, error, trace)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would find this half done
        from xpu_moe import streams

        streams.warn(f"{tool}: interrupted")
        raise SystemExit(streams.INTERRUPTED)  # else Python dies by the signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise)
        sys.excepthook = told


def of_a_tool() -> None:
    """`expected` where Python is about to run a tool of ours by -m: argv[0] is "-m" until its file has been found."""
    if getattr(sys, "argv", [])[:1] == ["-m"]:
        given = (argument.removeprefix("-m") for argument in sys.orig_argv[1:])
        name = next((name for name in given if name.partition(".")[0] == "xpu_moe"), "")
        if name and name.count(".") <= 1:  # deeper ones are children of tools
            expected(name)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupt
