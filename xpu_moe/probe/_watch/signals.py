"""Being asked to stop, at any moment, without an exception in the middle of something."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType


class Stop:
    """While it is entered, SIGINT, SIGTERM and SIGHUP are noted in `signal` and make `fd` readable; nothing else."""

    def __init__(self) -> None:
        self.signal = 0
        self.fd = -1

    def __enter__(self) -> Stop:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._old = {number: signal.signal(number, self._note) for number in _NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._write)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.signal = self.signal or number
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")

    @property
    def exit_code(self) -> int:
        return 128 + self.signal


_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
