"""Follows the log of a start: which phase it is in, whether it stands still, and what its messages mean.

Phases and messages are tables of the doctor; the two phases that no log shows (before the first known line, and the
canary) are added here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xpu_moe.doctor.logs import Explainer, LogFinding
from xpu_moe.doctor.phases import PHASES, later, phase_of
from xpu_moe.env import read
from xpu_moe.launch.errors import USAGE, LaunchError

PYTHON, CANARY, SERVING = "python", "canary", "serving"
# name -> (what happens, seconds without a sign of progress that count as stalled)
_OWN = {
    PYTHON: ("starting Python and vLLM", 300.0),
    CANARY: ("asking the canary questions", 600.0),
    SERVING: ("serving", float("inf")),
}
_TABLE = {phase.name: (phase.says, float(phase.limit_s) or 120.0) for phase in PHASES} | _OWN
# Signs of life inside a phase. Any other line is none: a stuck engine goes on complaining.
_PROGRESS = re.compile(r"\d+% Completed|\d+%\||\d+/\d+|Compiling|took [\d.]+ s")
_LONGER = " (XPU_MOE_STALL_LIMIT=SECONDS allows longer)"
_STUCK_LINE = "No available shared memory broadcast block"
_STUCK_LINES = 3  # so many of them (one a minute) in a row end a start: a published gate for these machines
# While a first compilation keeps the workers busy the queue complains each minute too: there the phase's limit decides.
_BUSY = frozenset({"compile"})


def limit(environ: Mapping[str, str]) -> float | None:
    """The user's own limit for silence in seconds, None without one; LaunchError(USAGE) for what is no such number."""
    given = read.integer("XPU_MOE_STALL_LIMIT", environ)
    if given is not None and given < 1:
        raise LaunchError(USAGE, f"XPU_MOE_STALL_LIMIT={given}: wanted at least 1 second")
    return given


@dataclass(frozen=True)
class Stall:
    """A start that stands still."""

    phase: str
    seconds: float
    because: str

    def text(self) -> str:
        """In one line."""
        return f"stalled in phase {self.phase} ({says(self.phase)}) after {self.seconds:.0f} s: {self.because}"


def says(phase: str) -> str:
    """What happens in a phase."""
    return _TABLE[phase][0]


class Watch:
    """Follows one start. Times are those of the caller's clock, in seconds. `limit` replaces all limits."""

    def __init__(self, now: float, limit: float | None = None) -> None:
        self.phase = PYTHON
        self.findings: list[LogFinding] = []
        self._limit = limit
        self._entered = self._sign = now
        self._mark = ""
        self._stuck_lines = 0
        self._done: list[dict[str, Any]] = []
        self._explainer = Explainer()

    def feed(self, line: str, now: float) -> tuple[str | None, LogFinding | None]:
        """One line of the log: the phase that it opens and what it means, each None for most lines."""
        finding = self._explainer.feed(line)
        if finding:
            self.findings.append(finding)
        opened = None
        reached = phase_of(line)
        starting = self.phase not in (CANARY, SERVING)
        if reached and starting and (self.phase == PYTHON or later(reached.name, self.phase)):
            opened = reached.name
            self.enter(opened, now)
        mark = _PROGRESS.search(line)
        if mark and mark[0] != self._mark:
            self._mark, self._sign, self._stuck_lines = mark[0], now, 0
        if _STUCK_LINE in line and self.phase not in _BUSY:
            self._stuck_lines += 1
        return opened, finding

    def enter(self, phase: str, now: float) -> None:
        """Open a phase by name."""
        self._done.append({"phase": self.phase, "seconds": round(now - self._entered, 2)})
        self.phase = phase
        self._entered = self._sign = now
        self._stuck_lines = 0

    def stalled(self, now: float) -> Stall | None:
        """Whether the start stands still."""
        if self.phase == SERVING:
            return None
        if self._stuck_lines >= max(_STUCK_LINES, int(self._limit or 0) // 60):
            return Stall(self.phase, now - self._sign, f"{self._stuck_lines} times {_STUCK_LINE!r}{_LONGER}")
        limit = _TABLE[self.phase][1] if self._limit is None else self._limit
        silent = now - self._sign
        return (
            Stall(self.phase, silent, f"no progress, the limit is {limit:.0f} s{_LONGER}") if silent > limit else None
        )

    def timings(self, now: float) -> list[dict[str, Any]]:
        """Seconds of every phase so far."""
        return [*self._done, {"phase": self.phase, "seconds": round(now - self._entered, 2)}]

    def causes(self) -> list[LogFinding]:
        """What the whole log means, root cause first, without what is merely informative."""
        return [finding for finding in self._explainer.result().findings if finding.severity != "info"]
