"""Where the system's Python is found."""

from __future__ import annotations

import os
from pathlib import Path


def system_path() -> str:
    """PATH without any virtual environment, neither the tests' nor one that the developer has active."""
    parts = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(part for part in parts if not (Path(part).parent / "pyvenv.cfg").exists())
