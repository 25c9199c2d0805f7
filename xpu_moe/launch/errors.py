"""How a launch ends: one line for people, one exit code for scripts."""

from __future__ import annotations

from xpu_moe import cache, streams
from xpu_moe.env import read

OK = 0
USAGE = 2  # arguments, model folder, preflight
ENVIRONMENT = 3  # Python, installation, cache folder, disk
ENGINE = 4  # vLLM died, stalled or could not be started
CANARY = 5  # vLLM answers, but wrongly
INTERRUPTED = 130  # SIGINT, SIGTERM or SIGHUP

MEANING = {
    OK: "done",
    USAGE: "usage, model or preflight",
    ENVIRONMENT: "environment or installation",
    ENGINE: "engine failed",
    CANARY: "canary failed",
    INTERRUPTED: "interrupted",
    streams.LOST: "done, but what was asked for could not be written on stdout",
    streams.CLOSED: "done, but the reader of stdout has gone",
}


class LaunchError(Exception):
    """Ends the launch with `code` (one of this module's) and a message of one line."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Interrupted(Exception):
    """SIGINT, SIGTERM or SIGHUP arrived."""


EXPECTED = (LaunchError, Interrupted, read.BadValue, cache.UnsafeCache, OSError)  # what `outcome` can put into words


def outcome(error: BaseException) -> tuple[int, str]:
    """Exit code and message of one of EXPECTED."""
    if isinstance(error, LaunchError):
        return error.code, str(error)
    if isinstance(error, Interrupted):
        return INTERRUPTED, f"{error}: stopped"
    if isinstance(error, read.BadValue):
        return USAGE, str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return ENVIRONMENT, f"{where}{error.strerror or error}"
    return ENVIRONMENT, str(error)
