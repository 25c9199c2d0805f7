"""Runs of the all-reduce probe from outside, and what they must not leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xpu_moe.env.read import snapshot

TINY = ("--device", "cpu", "--sizes", "8,6144", "--world", "2")


@dataclass
class Run:
    """One run of the probe, marked so that every process of it can be found afterwards."""

    folder: Path
    arguments: tuple[str, ...]
    environ: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    seconds: float = 0.0
    code: int = 0
    report: dict[str, Any] = field(default_factory=dict)
    stderr: str = ""

    def start(self) -> Run:
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        environ = {**snapshot(), "TMPDIR": str(self.temporary), "XPU_MOE_TEST_MARK": self.mark, **self.environ}
        environ.setdefault("OMP_NUM_THREADS", "1")
        command = [*self.prefix, sys.executable, "-m", "xpu_moe.probe", "allreduce", "--json", *self.arguments]
        self._begun = time.monotonic()
        self._shared = set(os.listdir("/dev/shm"))
        self.process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder
        )
        return self

    def finish(self, limit_s: float = 120.0) -> Run:
        try:
            out, self.stderr = self.process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.seconds = time.monotonic() - self._begun
        self.code = self.process.returncode
        with contextlib.suppress(ValueError):
            self.report = json.loads(out)
        return self

    def left_behind(self) -> list[str]:
        """Processes, temporary folders and shared-memory files of this run that are still there."""
        left = [f"process {pid}" for pid in marked(self.mark)]
        left += [str(path) for path in self.temporary.glob("xpu_moe-probe-*")]
        records = Path(self.environ.get("XPU_MOE_CACHE", self.folder / "none")) / "probe-runs"
        left += [str(path) for path in records.glob(f"{self.process.pid}-*.json")]
        return left

    def where(self, phase: str, limit_s: float = 60.0) -> None:
        """Wait until a rank of the run is loading torch (`start`) or further (`init`: a rank has made the meeting)."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            ranks = [pid for pid in marked(self.mark) if "_allreduce.rank" in _command(pid)]
            if phase == "start" and ranks:
                return
            if phase == "init" and any("libtorch_cpu" in _maps(pid) for pid in ranks):
                return
            time.sleep(0.02)
        raise AssertionError(f"no rank reached {phase}")


def probe(folder: Path, *arguments: str, prefix: tuple[str, ...] = (), **environ: str) -> Run:
    """A run to its end."""
    environ.setdefault("XPU_MOE_CACHE", str(folder / "cache"))
    return Run(folder, arguments, environ, prefix).start().finish()


def marked(mark: str) -> list[int]:
    """Live processes (no zombies) that carry a run's mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def rank_pid(run: Run, number: int, limit_s: float = 30.0) -> int:
    """The process of one rank of a run."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        for pid in marked(run.mark):
            if f"plan.json {number} " in _command(pid):
                return pid
        time.sleep(0.02)
    raise AssertionError(f"rank {number} never started")


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def _maps(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text(errors="replace")
    return ""


def interrupt(run: Run, number: int = signal.SIGINT) -> None:
    run.process.send_signal(number)
