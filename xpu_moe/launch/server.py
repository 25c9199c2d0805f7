"""vLLM as a child: started through the supervisor, its log read, masked, kept and followed."""

from __future__ import annotations

import collections
import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from xpu_moe.launch import supervisor
from xpu_moe.launch.secrets import Masker

GRACE = 6.0  # seconds for vLLM's own shutdown; with killing and cleaning a stop stays below 10 s
_LOG_LIMIT = 64 << 20


class Server:
    """The running child. `on_line` is called for every line of its log, in the reader's thread."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        masker: Masker,
        on_line: Callable[[str], None],
    ) -> None:
        self.log = log
        self.tail: collections.deque[str] = collections.deque(maxlen=200)
        self._masker, self._on_line = masker, on_line
        self._log = _PrivateLog(log)
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-u", str(Path(supervisor.__file__)), str(GRACE), *command],
            env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self._taking = threading.Lock()  # held from the reading of some lines until they are taken
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._child.pid

    def poll(self) -> int | None:
        """The exit code once the server has ended."""
        return self._child.poll()

    def read_up(self, limit_s: float = 2.0) -> None:
        """Wait until every line that was written before now is taken, at most `limit_s` seconds: the reader may be
        behind what else is seen of the server."""
        assert self._child.stdout is not None
        end = time.monotonic() + limit_s
        waiting = select.poll()
        waiting.register(self._child.stdout, select.POLLIN)
        while self._reader.is_alive() and time.monotonic() < end:
            with self._taking:
                if not waiting.poll(0):
                    return
            time.sleep(0.01)

    def stop(self) -> float:
        """End the server and everything below it; the seconds that took. May be called twice."""
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            if self._child.stdin:
                self._child.stdin.close()  # the supervisor's signal to end
        try:
            self._child.wait(GRACE + 3)
        except subprocess.TimeoutExpired:
            supervisor.kill_all(self._child.pid)
            self._child.kill()
            self._child.wait()
        self._reader.join(2)
        self._log.close()
        return time.monotonic() - begun

    def _read(self) -> None:
        assert self._child.stdout is not None
        descriptor = self._child.stdout.fileno()
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        rest = b""
        while True:
            ready.poll()
            with self._taking:
                try:
                    data = os.read(descriptor, 1 << 16)
                except OSError:
                    break
                if not data:
                    break
                rest += data
                *lines, rest = rest.replace(b"\r", b"\n").split(b"\n")
                if len(rest) > 1 << 16:
                    lines, rest = [*lines, rest], b""
                for raw in lines:
                    self._take(raw)
        if rest:
            self._take(rest)

    def _take(self, raw: bytes) -> None:
        line = self._masker.text(raw.decode("utf-8", errors="replace")).rstrip()
        if line:
            self.tail.append(line)
            self._log.write(line)
            self._on_line(line)


class _PrivateLog:
    """A log file of mode 0600 that is turned over (one older part is kept) when it gets long."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._open()

    def _open(self):  # type: ignore[no-untyped-def]
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="replace", buffering=1)

    def write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk must not stop a server that works
            self._file.write(line + "\n")
            if self._file.tell() > _LOG_LIMIT:
                self._file.close()
                os.replace(self._path, self._path.with_suffix(".1.log"))
                self._file = self._open()

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.close()
