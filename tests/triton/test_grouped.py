"""The grouped products on the CPU: Triton's interpreter in a process of its own (Triton stays out of this one)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xpu_moe import toolenv

ROOT = Path(__file__).parents[2]
TRITON = "triton==3.6.0"


@pytest.mark.slow
def test_the_interpreter_agrees_with_float64():
    overlay = toolenv.overlay("triton", [TRITON])
    environ = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join((str(ROOT), str(overlay)))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/triton/interpreted.py"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-500:]
