"""Runs one command and answers for all that it starts: nothing outlives this process or its parent.

    python supervisor.py GRACE_SECONDS COMMAND …        (standard input: a pipe that the launcher holds open)

It is a child subreaper, so that every orphan of the server becomes its child. When its input closes (the launcher
ended, by SIGKILL too) or SIGTERM arrives, the server gets SIGTERM, GRACE_SECONDS to end, then everything below is
killed and the run's files in /dev/shm are removed. Exit code: the command's (128 + signal where one killed it).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

if __package__ in (None, ""):  # run as a file, so that starting it imports nothing else of the package
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from xpu_moe.launch.shm import Ledger

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_TICK = 0.5  # seconds between looks at the processes


def main(argv: list[str]) -> int:
    """See the top of this file."""
    grace, command = float(argv[0]), argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    stop = _Flag()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop.set)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ledger = Ledger()

    def die_with_us() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.set_wakeup_fd(-1)

    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_us, start_new_session=True)
    except OSError as error:
        print(f"supervisor: {command[0]}: {error.strerror}", flush=True)
        return 127
    code = _watch(child, stop, wake_read, ledger)
    if code is None:
        code = _end(child, grace, ledger)
    ledger.record(descendants(os.getpid()))
    kill_all(os.getpid())
    for name in ledger.remove():
        print(f"supervisor: removed /dev/shm/{name}", flush=True)
    return code


class _Flag:
    def __init__(self) -> None:
        self.raised = False

    def set(self, *_: object) -> None:
        self.raised = True


def _watch(child: subprocess.Popen, stop: _Flag, wake: int, ledger: Ledger) -> int | None:
    """Until the child ends (its code) or somebody wants us to stop (None)."""
    with selectors.DefaultSelector() as ready:
        ready.register(0, selectors.EVENT_READ)
        ready.register(wake, selectors.EVENT_READ)
        next_look = 0.0
        while not stop.raised:
            for key, _ in ready.select(_TICK):
                if key.fd == 0 and not os.read(0, 4096):
                    return None
                if key.fd == wake:
                    os.read(wake, 4096)
            code = child.poll()
            if code is not None:
                return code if code >= 0 else 128 - code
            _reap(child.pid)
            if time.monotonic() >= next_look:
                begun = time.monotonic()
                ledger.record(descendants(os.getpid()))
                next_look = begun + max(_TICK, 20 * (time.monotonic() - begun))  # at most 5 % of a core
    return None


def _end(child: subprocess.Popen, grace: float, ledger: Ledger) -> int:
    ledger.record(descendants(os.getpid()))
    with contextlib.suppress(OSError):
        child.send_signal(signal.SIGTERM)
    try:
        code = child.wait(grace)
    except subprocess.TimeoutExpired:
        child.kill()
        code = child.wait()
    return code if code >= 0 else 128 - code


def descendants(root: int) -> list[int]:
    """All processes below `root`, from /proc."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
                state, parent = text.rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    todo = [root]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_all(root: int) -> None:
    """SIGKILL everything below `root` until nothing is left."""
    for _ in range(200):
        left = descendants(root)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        if not left:
            return
        time.sleep(0.02)


def _reap(spare: int = 0) -> None:
    """Collect dead orphans; `spare` is waited for by its Popen."""
    for entry in list(_children(os.getpid())):
        if entry != spare:
            with contextlib.suppress(OSError):
                os.waitpid(entry, os.WNOHANG)


def _children(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
                if int(text.rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
