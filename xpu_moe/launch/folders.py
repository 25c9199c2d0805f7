"""The folder of one run (log, the workers' reports) in the private cache; the newest twenty are kept."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from xpu_moe import cache
from xpu_moe.launch.errors import ENVIRONMENT, LaunchError

KEPT = 20
_NAME = re.compile(r"\d{8}-\d{6}-\d+")


def planned() -> Path:
    """Where a run's folder would be (for --dry-run); nothing is made."""
    return cache.location("runs", "THIS-RUN")


def make() -> Path:
    """A fresh folder of mode 0700; older ones beyond the newest twenty are removed."""
    try:
        root = cache.folder("runs")
        older = sorted(entry for entry in root.iterdir() if _NAME.fullmatch(entry.name))
        for entry in older[:-KEPT]:
            shutil.rmtree(entry, ignore_errors=True)
        return cache.folder("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    except cache.UnsafeCache as error:
        raise LaunchError(ENVIRONMENT, str(error)) from None
    except OSError as error:
        raise LaunchError(ENVIRONMENT, f"{error.filename}: {error.strerror}") from None
