"""Fifty random faults in a row: each run ends in time, with its code, and leaves nothing behind."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.probe.runs import Run, interrupt, marked
from xpu_moe import cache
from xpu_moe.probe._watch.footprint import sweep

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1500)]

ROUNDS = 50
TIMEOUT_S = 3.0
END_S = 8.0  # from a signal to the end
CODES = {"kill": 4, "exit": 4, "sleep": 3, "wrong": 5, "version": 4, "none": 0}
PHASES = ("init", "warmup", "check", "timed", "close")


def one_round(folder: Path, draw: random.Random, backend: str) -> None:
    fault = draw.choice(
        ("kill", "kill", "exit", "sleep", "wrong", "version", "none", "signal", "signal", "parent killed")
    )
    phase, rank = draw.choice(PHASES), draw.randrange(2)
    inject = "" if fault == "none" else f"{fault}@{phase}:{rank}" if fault in CODES else f"sleep@{phase}:{rank}"
    arguments = ("--backend", backend, "--device", "cpu", "--world", "2", "--sizes", "8,6144", "--timeout",
                 str(TIMEOUT_S) if fault == "sleep" else "60", "--inject", inject)  # fmt: skip
    what = f"{backend} {fault} {inject}"
    run = Run(folder, arguments, {"XPU_MOE_CACHE": str(cache.folder())}).start()
    number = 0
    if fault not in CODES:
        number = signal.SIGKILL if fault == "parent killed" else draw.choice((signal.SIGINT, signal.SIGTERM))
        time.sleep(draw.uniform(0.0, 3.0))
        interrupt(run, number)
    begun = time.monotonic()
    run.finish(limit_s=90)
    if fault in CODES:
        assert run.code == CODES[fault], (what, run.code, run.report, run.stderr)
    else:
        # A signal before the probe's handlers are in place ends Python by the signal itself, or Python cannot begin.
        ends = (128 + number, -number, 1) if "Failed to import the site" in run.stderr else (128 + number, -number)
        assert run.code in ends, (what, run.code, run.report, run.stderr)
        assert time.monotonic() - begun < END_S, what
    deadline = time.monotonic() + 20  # a rank that has just begun sees it late where the cores are busy
    while fault == "parent killed" and marked(run.mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    if fault == "parent killed":
        sweep()
    assert run.left_behind() == [], what


def test_fifty_random_faults(tmp_path):
    draw = random.Random(20)
    sweep()
    backends = ("oneccl", "gloo") if shutil.which("g++") else pytest.fail("g++ is missing: apt-get install g++")
    shared = set(Path("/dev/shm").iterdir())
    Run(tmp_path, ("--backend", "oneccl", "--device", "cpu", "--world", "2", "--sizes", "8"),
        {"XPU_MOE_CACHE": str(cache.folder())}).start().finish(limit_s=600)  # builds the helper  # fmt: skip
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        one_round(folder, draw, backends[number % 5 == 4])
    left = [path.name for path in set(Path("/dev/shm").iterdir()) - shared if "ccl" in path.name.lower()]
    assert left == []
