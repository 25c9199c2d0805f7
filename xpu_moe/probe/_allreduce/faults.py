"""Breaking a rank on purpose: how the tests, and whoever doubts the watchdog, see what the probe says.

`--inject kill@timed:1` kills rank 1 in a timed loop. Kinds: kill, sleep (for ever), exit, wrong (its data), version (it
says that it loaded another library). Phases: start, init, warmup, check, timed, graph, close.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

KINDS = ("kill", "sleep", "exit", "wrong", "version")
PHASES = ("start", "init", "warmup", "check", "timed", "graph", "close")


@dataclass(frozen=True)
class Fault:
    """One fault of one rank, or none (kind "")."""

    kind: str = ""
    phase: str = ""
    rank: int = -1

    def strike(self, phase: str, rank: int) -> None:
        """Die, sleep or leave when this is the phase and the rank; the other kinds are asked for by name."""
        if phase != self.phase or rank != self.rank:
            return
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "sleep":
            while True:
                time.sleep(3600)
        if self.kind == "exit":
            raise SystemExit(1)

    def has(self, kind: str, rank: int) -> bool:
        return self.kind == kind and self.rank == rank


def parse(text: str) -> Fault:
    """`KIND@PHASE:RANK` -> Fault; "" -> none. ValueError says what is known."""
    if not text:
        return Fault()
    kind, _, rest = text.partition("@")
    phase, _, rank = rest.partition(":")
    if kind not in KINDS or phase not in PHASES or not rank.isdigit():
        raise ValueError(
            f"--inject: got {text!r}, wanted KIND@PHASE:RANK with a kind of {', '.join(KINDS)} and a phase of "
            f"{', '.join(PHASES)}"
        )
    return Fault(kind, phase, int(rank))
