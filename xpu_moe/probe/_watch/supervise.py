"""The parent: starts the ranks, reads what they report, and ends the run, whatever state a rank is in.

It holds no collective library and no torch, so nothing that hangs a rank can hang it. A run ends when every rank is
done, when one has died, when none has reported anything for `timeout_s`, or when a signal asks for it; then every
process of the run is killed by its group and reaped.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xpu_moe.probe._watch.footprint import Footprint
from xpu_moe.probe._watch.signals import Stop

_TICK_S = 0.1
_LOOK_S = 0.5  # between two looks at the shared-memory files of the ranks
_GRACE_S = 0.4  # after a death, for the others to show whether they died of it
_LONG_GRACE_S = 3.0  # the same where those that ended blame another one
_OF_ANOTHER = ("onnection closed", "onnection reset", "by peer", "imed out", "imeout", "roken pipe")
_REAP_S = 4.0
_UNMET = ("spawn", "start", "init")  # phases before the ranks have met


@dataclass
class Rank:
    """One local rank, as the parent sees it."""

    number: int
    process: subprocess.Popen[bytes]
    events: int
    log: Path
    stack: Path
    phase: str = "spawn"
    step: str = ""
    progress: int = 0
    dumps: bool = False
    done: bool = False
    error: str = ""
    ended: str = ""  # how it ended, "" while it lives
    ended_at: float = 0.0
    where: str = ""
    buffer: bytes = b""
    reaped: bool = False

    @property
    def blame(self) -> int:
        """0: killed from outside, 1: ended by itself, 2: its error only says that another rank went away."""
        if self.ended.startswith("killed"):
            return 0
        return 2 if any(sign in self.error for sign in _OF_ANOTHER) else 1


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ok, hang, dead or interrupted; the ranks as they were then."""

    kind: str
    ranks: tuple[Rank, ...]
    says: str = ""
    hello: Mapping[int, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """How a rank is started: its number, its command (the events' fd is appended by name), its environment."""

    number: int
    command: Callable[[int, Path], Sequence[str]]  # (events fd, stack file) -> argv
    environ: Mapping[str, str]


class Supervisor:
    """One run. `others`: ranks that other parents watch take part in it, so a death here may be the echo of one there,
    whose parent is to speak first."""

    def __init__(
        self, footprint: Footprint, folder: Path, stop: Stop, timeout_s: float, start_timeout_s: float,
        on_event: Callable[[int, dict[str, Any]], None], others: bool = False,
    ) -> None:  # fmt: skip
        self._footprint, self._folder, self._stop, self._on_event = footprint, folder, stop, on_event
        self._timeout_s, self._start_timeout_s = timeout_s, max(timeout_s, start_timeout_s)
        self._others = others
        self._ranks: list[Rank] = []
        self._hello: dict[int, dict[str, Any]] = {}
        self._selector = selectors.DefaultSelector()
        self._progress_at = time.monotonic()
        self._looked_at = 0.0

    def run(self, launches: Sequence[Launch]) -> Outcome:
        """Start the ranks, watch them, end them. Leaves no process."""
        self._selector.register(self._stop.fd, selectors.EVENT_READ, None)
        try:
            for launch in launches:
                if self._stop.signal:
                    break
                self._start(launch)
            return self._watch()
        finally:
            self._end_all()
            self._selector.close()

    def _start(self, launch: Launch) -> None:
        read, write = os.pipe()
        log = self._folder / f"rank-{launch.number}.log"
        stack = self._folder / f"rank-{launch.number}.stack"
        try:
            with log.open("wb") as handle:
                process = subprocess.Popen(
                    list(launch.command(write, stack)), stdin=subprocess.DEVNULL, stdout=handle, stderr=handle,
                    env=dict(launch.environ), pass_fds=(write,), start_new_session=True,
                )  # fmt: skip
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        rank = Rank(launch.number, process, read, log, stack)
        self._ranks.append(rank)
        self._selector.register(read, selectors.EVENT_READ, rank)

    def _watch(self) -> Outcome:
        death = 0.0
        while True:
            self._read(_TICK_S)
            now = time.monotonic()
            for rank in self._ranks:  # before the signal: it may be torchrun's answer to the death
                self._notice_end(rank)
            if self._stop.signal:
                return self._outcome("interrupted", f"signal {self._stop.signal}")
            if now - self._looked_at > _LOOK_S:
                self._look()
            mismatch = self._mismatch()
            if mismatch:
                return self._outcome("dead", mismatch)
            if all(rank.done and rank.ended for rank in self._ranks):
                return self._outcome("ok")
            if any(rank.ended and not rank.done for rank in self._ranks):
                death = death or now
                culprit = any(rank.ended and not rank.done and rank.blame < 2 for rank in self._ranks)
                grace = _GRACE_S if culprit else _LONG_GRACE_S
                nobody_left = all(rank.ended for rank in self._ranks) and (culprit or not self._others)
                if now - death > grace or nobody_left:
                    return self._outcome("dead")
            elif now - self._progress_at > self._limit():
                self._diagnose()
                return self._outcome("hang", f"no rank reported anything for {self._limit():g} s")

    def _limit(self) -> float:
        loading = len(self._hello) < len(self._ranks)
        if self._others:  # a rank waits in the meeting for those that are not watched here, and may be loading
            loading = loading or any(rank.phase in _UNMET for rank in self._ranks)
        return self._start_timeout_s if loading else self._timeout_s

    def _mismatch(self) -> str:
        libraries = {n: f"{h['library']['name']} {h['library']['version']}" for n, h in self._hello.items()}
        if len(set(libraries.values())) < 2:
            return ""
        listed = ", ".join(f"rank {number}: {name}" for number, name in sorted(libraries.items()))
        return f"the ranks run different libraries ({listed})"

    def _read(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._stop.fd, 64)
                continue
            rank: Rank = key.data
            data = os.read(rank.events, 1 << 16)
            if not data:
                self._selector.unregister(rank.events)
            *lines, rank.buffer = (rank.buffer + data).split(b"\n")
            for line in lines:
                self._event(rank, json.loads(line))

    def _event(self, rank: Rank, event: dict[str, Any]) -> None:
        rank.progress += 1
        self._progress_at = time.monotonic()
        name = event["event"]
        if name == "phase":
            rank.phase, rank.step = event["phase"], event["step"]
        elif name == "hello":
            rank.dumps = bool(event.get("dumps"))
            self._hello[rank.number] = event
        elif name == "error":
            rank.error = f"{event['kind']}: {event['text']}"
        elif name == "done":
            rank.done = True
        self._on_event(rank.number, event)

    def _notice_end(self, rank: Rank) -> None:
        """Look whether a rank has ended, without reaping it: its group must stay ours until it is killed."""
        if rank.ended:
            return
        info = os.waitid(os.P_PID, rank.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            killed = info.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            rank.ended = f"killed by {signal.Signals(info.si_status).name}" if killed else f"exit code {info.si_status}"
            rank.ended_at = time.monotonic()
            self._drain(rank)

    def _drain(self, rank: Rank) -> None:
        """What an ended rank still had in its pipe."""
        while rank.events in self._selector.get_map():
            if not any(key.data is rank for key, _ in self._selector.select(0)):
                return  # a child of the rank holds the pipe open and is silent
            self._read(0)

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        self._footprint.observe([rank.process.pid for rank in self._ranks if not rank.reaped])

    def _diagnose(self) -> None:
        """Ask every rank for its stack, and see whether it sleeps or spins."""
        before = {rank.number: _cpu_ticks(rank.process.pid) for rank in self._ranks}
        for rank in self._ranks:
            if rank.dumps and not rank.ended:
                os.kill(rank.process.pid, signal.SIGUSR1)
        time.sleep(0.5)
        for rank in self._ranks:
            busy = _cpu_ticks(rank.process.pid) - before[rank.number] > 10
            state = "stopped by a signal" if _stopped(rank.process.pid) else "spinning" if busy else "asleep"
            rank.where = f"{state}, {_top_frame(rank.stack)}"

    def _outcome(self, kind: str, says: str = "") -> Outcome:
        return Outcome(kind, tuple(self._ranks), says, dict(self._hello))

    def _end_all(self) -> None:
        self._look()
        for rank in self._ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + _REAP_S
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, deadline - time.monotonic()))
                rank.reaped = True
            os.close(rank.events)


def _cpu_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _stopped(pid: int) -> bool:
    """Whether somebody stopped the process (SIGSTOP, a debugger): it cannot tell where it stands."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def _top_frame(stack: Path) -> str:
    """`file.py:12 in name` of the innermost frames that a rank wrote; says so where it wrote none."""
    try:
        lines = [line.strip() for line in stack.read_text(errors="replace").splitlines() if "File" in line]
    except OSError:
        lines = []
    frames = []
    for line in lines[:3]:
        path, _, rest = line.removeprefix("File ").partition(", line ")
        frames.append(f"{Path(path.strip(chr(34))).name}:{rest.replace(' in ', ' in ', 1)}")
    return " < ".join(frames) or "no Python stack (inside a library that blocks signals, or not Python)"
