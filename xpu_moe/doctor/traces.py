"""Tracebacks in a log, told apart by process: which exception came first, and which only follow from it.

vLLM puts the process and a time stamp before every line; journald and docker put theirs before that. Lines of several
processes stand mixed, so each process has a traceback of its own. Constant memory: of all exceptions the best is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from xpu_moe.doctor.text import clean

_HEAD = "Traceback (most recent call last):"
# the API server was told to end (vLLM's signal handler): what only follows from that is no failure
STOPPED = "API server: shutdown triggered"
_OUTER = r"(?:[A-Z][a-z]{2} +\d+ [\d:]+ \S+ [^\s:]+(?:\[\d+\])?: |[\w.-]+ +\| |\d{4}-\d\d-\d\dT\S+ )?"
_PREFIX = re.compile(
    rf"^{_OUTER}(?:\((?P<process>\w[\w -]*?) pid=\d+\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]{5,10} [\d:.,]+ \[[^\]]*\] ?)?"
)
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_FRAME = re.compile(r'^\s+File "[^"]+", line \d+')
# torch's ranks, the frame of an exception group
_MARGIN = re.compile(r"^(?:\[rank\d+\]: ?)?[ |]*$")
_RAISED = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (?P<message>.*)|:?\s*)$")
_LINKS = ("During handling of the above exception", "The above exception was the direct cause")
# written for people who look on: the process goes on
_SURVIVED = frozenset({"DEBUG", "INFO", "WARNING"})
# an end that was asked for
_ASKED = frozenset({"KeyboardInterrupt", "SystemExit", "CancelledError", "GeneratorExit"})
_NEVER = re.compile(r"root cause above|EngineDeadError|Failed core proc|Engine core initialization failed")
_FOLLOWS = re.compile(
    r"for (?:the )?root cause|WorkerProc initialization failed|Worker failed with error|RPC call to \w+ timed out"
    r"|BrokenPipeError|ConnectionResetError|EOFError|[Bb]roken pipe|\bcancelled\b"
)
_LONGEST = 2000  # lines of one traceback
_LASTS = 20_000  # lines of all processes after which a traceback without an end is given up
_MOST = 256  # processes with an open traceback
_MORE = 3  # lines of a message after its first


@dataclass(frozen=True)
class Raised:
    """An exception that no process handled. `ended`: what its chain ended as, None where it stands alone."""

    line: int
    process: str | None
    type: str
    message: str
    ended: str | None = None

    def text(self) -> str:
        """As Python prints it."""
        return f"{self.type}: {self.message}" if self.message else self.type

    def as_dict(self) -> dict[str, Any]:
        return {"line": self.line, "process": self.process, "type": self.type, "message": self.message,
                "ended": self.ended}  # fmt: skip


@dataclass
class _Open:
    """The traceback of one process: `first` is the first exception of its chain."""

    level: str
    margin: str
    lines: int = 0
    over: bool = False
    linked: bool = False
    first: Raised | None = None
    more: int = 0


class Tracebacks:
    """`feed` every line; `root()` is the first exception of the first process that failed, or None."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._best: Raised | None = None
        self._seen = False
        self._until = 0
        self._stopped = False

    @property
    def inside(self) -> bool:
        """Does the next line perhaps belong to a traceback?"""
        return any(not trace.over or trace.linked for trace in self._open.values())

    @property
    def failed(self) -> bool:
        """Did anything raise, or end within a traceback?"""
        return self._seen or any(not trace.over for trace in self._open.values())

    def root(self) -> Raised | None:
        return None if self._best is None or _NEVER.search(self._best.text()) else self._best

    def forget(self) -> None:
        """The server came up: what was raised before did not stop it."""
        self._open.clear()
        self._best, self._seen = None, False

    def feed(self, number: int, line: str) -> bool:
        """Take line `number`; is it a frame or source text of a traceback, which says nothing by itself?"""
        self._stopped = self._stopped or STOPPED in line
        if not self._open and _HEAD not in line and 'File "' not in line:
            return False
        if self._open and number > self._until:
            self._seen = self.failed
            self._open.clear()
        line = _ESCAPES.sub("", line).rstrip("\r\n")
        found = _PREFIX.match(line)
        assert found  # every part of the prefix may be absent
        process, level, body = found["process"] or "", found["level"] or "", line[found.end() :]
        trace = self._open.get(process)
        if _HEAD in body or (trace is None and level == "ERROR" and _FRAME.match(body)):
            return self._begin(number, process, level, body)
        if trace is None:
            return False
        if level != trace.level:
            if trace.over and not trace.linked:
                del self._open[process]
            return False
        trace.lines += 1
        if trace.lines > _LONGEST:
            self._seen = self._seen or not trace.over
            del self._open[process]
            return False
        if body.startswith(trace.margin):
            body = body[len(trace.margin) :]
        return self._after(process, trace, body) if trace.over else self._within(number, process, trace, body)

    def _begin(self, number: int, process: str, level: str, body: str) -> bool:
        margin = body.partition(_HEAD)[0] if _HEAD in body else ""
        if level in _SURVIVED or not _MARGIN.match(margin):
            return "Exception Group" in margin
        self._until = number + _LASTS
        trace = self._open.get(process)
        if trace and trace.linked:
            trace.margin, trace.over, trace.linked = margin, False, False
        elif process in self._open or len(self._open) < _MOST:
            self._open[process] = _Open(level, margin)
        return True

    def _within(self, number: int, process: str, trace: _Open, body: str) -> bool:
        if not body or body[0] in " \t|":
            return True
        found = _RAISED.match(body)
        if not found:
            return False
        trace.over, trace.more = True, 0
        name = found["type"]
        raised = Raised(number, process or None, clean(name, 120), clean(found["message"] or "", 600))
        if name.rpartition(".")[2] in _ASKED or (self._stopped and _follows(raised.text())):
            return False
        self._seen = True
        if trace.first is None:
            trace.first = raised
            self._offer(raised)
        elif not _NEVER.search(raised.text()):
            self._change(trace, ended=raised.text())
        return False

    def _after(self, process: str, trace: _Open, body: str) -> bool:
        if not body.strip():
            return True
        if body.startswith(_LINKS):
            trace.linked = True
            return True
        if trace.linked:
            return False
        if body.startswith("  ") and trace.more < _MORE and trace.first and trace.first.ended is None:
            trace.more += 1  # pydantic says what is wrong in the lines below its name
            self._change(trace, message=clean(f"{trace.first.message} {body.strip()}", 600))
            return False
        del self._open[process]
        return False

    def _change(self, trace: _Open, **fields: Any) -> None:
        assert trace.first
        kept = trace.first is self._best
        trace.first = replace(trace.first, **fields)
        if kept:
            self._best = trace.first

    def _offer(self, raised: Raised) -> None:
        if self._best is None or _key(raised) < _key(self._best):
            self._best = raised


def _key(raised: Raised) -> tuple[int, int, int]:
    """A worker before the engine, the engine before the API server; what only follows after all of them."""
    process = raised.process or ""
    return (
        _follows(raised.text()),
        0 if "Worker" in process else 2 if process.startswith("APIServer") else 1,
        raised.line,
    )


def _follows(text: str) -> int:
    """0 an exception of its own, 1 one that follows from another, 2 one that only says that there is another."""
    return 2 if _NEVER.search(text) else 1 if _FOLLOWS.search(text) else 0
