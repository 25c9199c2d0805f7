"""Run a helper (pip, the maker of the demo) that ends with us: below the supervisor, so that SIGKILL of the launcher
ends it and all that it started too."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from xpu_moe.launch import supervisor

_GRACE = 2.0  # seconds between SIGTERM and SIGKILL when it is stopped


def run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output (both streams). An exception meanwhile (Ctrl-C) ends the helper first; OSError as Popen."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-B", str(Path(supervisor.__file__)), str(_GRACE), *argv],
        env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    try:
        output = child.stdout.read()
        return child.wait(), output
    finally:
        with contextlib.suppress(OSError):
            child.stdin.close()  # the supervisor's signal to end
        child.wait()
        child.stdout.close()
