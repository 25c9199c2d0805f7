"""Commands that may take long or never end, and what is in this machine, asked without waiting for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from xpu_moe.probe._watch.signals import Stop

_LOOK = (
    "import collections, json; from xpu_moe.device import inventory; "
    "print(json.dumps(collections.Counter(d.kind for d in inventory().devices)))"
)


class Impatient(RuntimeError):
    """A command failed or did not end in time; the message says which."""


def patiently(command: Sequence[str], stop: Stop, what: str, limit_s: float = 600.0) -> str:
    """Run a command in its own group and return its stdout; its stderr is ours. A signal ends it. Raises Impatient."""
    with subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + limit_s
        while process.poll() is None and not stop.signal and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            how = "was interrupted" if stop.signal else f"did not end within {limit_s:g} s"
        else:
            how = f"ended with exit code {process.returncode}; see above"
        out, _ = process.communicate()
    if process.returncode:
        raise Impatient(f"{what} {how}")
    return out


def devices(stop: Stop, limit_s: float = 60.0) -> dict[str, int]:
    """Device kind -> how many, accelerators first. Asked in a child: a driver in trouble hangs whoever asks it."""
    out = patiently([sys.executable, "-c", _LOOK], stop, "looking for devices", limit_s)
    found = json.loads(out.strip().splitlines()[-1])
    return {kind: found[kind] for kind in ("xpu", "cuda", "cpu") if kind in found}
