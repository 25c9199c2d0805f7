"""What a tool says, and where: its answer on stdout, all else on stderr, whatever these two are. Standard library only.

    def main(argv):
        streams.prepare()
        arguments = streams.Parser(prog="tool").parse_args(argv)     # its errors are an object too, with --json
        if wrong:
            return streams.refuse("tool", "--x: got 1, wanted 2", arguments.json)
        return streams.emit("tool", text) or code

An answer that nobody took has an exit code of its own, whatever it said: CLOSED where the reader went (`… | head`; as
a shell names SIGPIPE), LOST where the system refused to write (a full disk, a closed stdout).
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TextIO

INTERRUPTED = 128 + signal.SIGINT  # 130
CLOSED, LOST = 128 + signal.SIGPIPE, os.EX_IOERR  # 141, 74
BAD_ARGUMENT = 2


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors end with `refusal`, and with --json leave refuse's object on stdout."""

    def __init__(self, *given: Any, refusal: int = BAD_ARGUMENT, **named: Any) -> None:
        super().__init__(*given, **named)
        self.refusal = refusal
        self._as_json = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; remembers whether an error is to be an object."""
        self._as_json = asked_for_json(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Usage and message on stderr, the object on stdout; raises SystemExit."""
        warn(f"{self.format_usage().rstrip()}\n{self.prog}: error: {message}")
        raise SystemExit(_refused(self.prog, message, self._as_json, self.refusal))

    def print_help(self, file: Any = None) -> None:
        """The help is an answer: SystemExit with LOST or CLOSED where nobody took it."""
        if file is not None:
            return super().print_help(file)
        lost = emit(self.prog, self.format_help().rstrip("\n"))
        if lost:
            raise SystemExit(lost)
        return None


def interruptible(tool: str, main: Callable[[], int]) -> int:
    """`main()`'s exit code; INTERRUPTED and a line on stderr, in place of a traceback, where Ctrl-C ends it."""
    try:
        return main()
    except KeyboardInterrupt:
        warn(f"{tool}: interrupted")
        return INTERRUPTED


def asked_for_json(argv: Sequence[str]) -> bool:
    """Whether --json stands in a command line, before a `--`."""
    own = list(argv)
    return "--json" in own[: own.index("--") if "--" in own else None]


def emit(tool: str, text: str, end: str = "\n") -> int:
    """Print and flush a whole answer. 0, or CLOSED or LOST with a line on stderr."""
    stream = sys.stdout
    if stream is None:  # `>&-`
        warn(f"{tool}: the answer is lost: stdout is closed")
        return LOST
    try:
        print(printable(text, stream), end=end, file=stream, flush=True)
    except (OSError, ValueError) as error:  # ValueError: closed by Python
        _let_go(stream)
        closed = isinstance(error, OSError) and error.errno == errno.EPIPE
        reason = "the reader of stdout has gone" if closed else f"stdout: {getattr(error, 'strerror', None) or error}"
        warn(f"{tool}: the answer is lost: {reason}")
        return CLOSED if closed else LOST
    return 0


def refuse(tool: str, text: str, as_json: bool, code: int = BAD_ARGUMENT) -> int:
    """Say on stderr, and with `as_json` as {"ok": false, "cannot": text} on stdout, why there is no answer: `code`."""
    warn(f"{tool}: {text}")
    return _refused(tool, text, as_json, code)


def warn(text: str) -> None:
    """A line on stderr; one that nobody can read is no reason to stop, and never goes to stdout."""
    stream = sys.stderr
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            print(printable(text, stream), file=stream, flush=True)


def printable(text: str, stream: TextIO) -> str:
    """`text` with what the stream cannot encode replaced by escapes (\\u2026)."""
    coding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(coding, getattr(stream, "errors", None) or "strict")
    except UnicodeError:
        return text.encode(coding, "backslashreplace").decode(coding)
    return text


def prepare() -> None:
    """Before anything is printed: no print of this process fails for a stream that is closed or knows few characters.

    A closed descriptor is taken, so that no file that is opened later gets its number: stderr by a sink, stdout by
    something that cannot be written, so that a process which takes over from this one sees the loss as well.
    """
    for number, how in ((1, os.O_RDONLY), (2, os.O_WRONLY)):
        _occupy(number, how)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:  # a path that is no valid text goes out as it came in, where that can be
            utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
            reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
    atexit.unregister(release)
    atexit.register(release)


def release() -> None:
    """At the end: what is still buffered for a reader that is gone goes nowhere.

    Else the interpreter fails to flush it while it shuts down and replaces the exit code by 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _let_go(stream)


def _refused(tool: str, text: str, as_json: bool, code: int) -> int:
    return (emit(tool, json.dumps({"ok": False, "cannot": text})) if as_json else 0) or code


def _let_go(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _occupy(number: int, how: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        taken = os.open(os.devnull, how)
        if taken == number:
            os.set_inheritable(number, True)
        else:
            os.dup2(taken, number)
            os.close(taken)
