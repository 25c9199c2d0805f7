"""The kernels without a card: Triton's interpreter, and its compiler, in processes of their own (Triton stays out of
this one)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xpu_moe import toolenv

ROOT = Path(__file__).parents[2]
TRITON = "triton==3.6.0"


def with_triton(*arguments: str, **more: str) -> subprocess.CompletedProcess:
    overlay = toolenv.overlay("triton", [TRITON])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(overlay))), **more}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_interpreter_agrees_with_float64():
    files = ("tests/triton/interpreted.py", "tests/triton/interpreted_rms.py")
    done = with_triton("-m", "pytest", "-q", "-p", "no:cacheprovider", *files, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-500:]


@pytest.mark.slow
def test_the_norms_halves_compile_for_nvidia_and_read_16_bytes_at_a_time(tmp_path):
    done = with_triton("tests/triton/compiled_rms.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.splitlines() == [
        f"sm_{arch} {dtype} {name}: wide loads, one launch"
        for arch in (80, 90)
        for dtype in ("fp32", "bf16", "fp16")
        for name in ("partial", "apply")
    ]
