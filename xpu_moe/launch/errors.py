"""How a launch ends: one line for people, one exit code for scripts."""

from __future__ import annotations

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
}


class LaunchError(Exception):
    """Ends the launch with `code` (one of this module's) and a message of one line."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Interrupted(Exception):
    """SIGINT, SIGTERM or SIGHUP arrived."""
