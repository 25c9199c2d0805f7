"""An answer on stdout whose reader is gone or whose disk is full: one line on stderr and a code of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from xpu_moe import streams
from xpu_moe.env import read

BIG = "import sys; from xpu_moe import streams; sys.exit(streams.emit('tool', 'x' * {size}))"


def child(where: str, *command: str) -> subprocess.CompletedProcess:
    """A Python process whose stdout is a pipe that nobody reads, a full device, or no file at all."""
    environ = {**read.snapshot(), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, *command]
    if where == "closed":
        reading, writing = os.pipe()
        os.close(reading)
        try:
            return subprocess.run(line, env=environ, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
        finally:
            os.close(writing)
    shell = ["sh", "-c", 'exec "$@" >/dev/full' if where == "full" else 'exec "$@" >&-', "sh", *line]
    return subprocess.run(shell, env=environ, stderr=subprocess.PIPE, text=True, timeout=120)


@pytest.mark.parametrize("size", (10, 1 << 20))  # within the buffer, and beyond it
@pytest.mark.parametrize(
    ("where", "code", "says"),
    (("closed", 141, "the reader of stdout has gone"), ("full", 74, "stdout: No space left on device"),
     ("none", 74, "stdout is closed")),
)  # fmt: skip
def test_an_answer_that_is_lost_is_one_line_and_a_code(where, code, says, size):
    done = child(where, "-c", BIG.format(size=size))
    assert (done.returncode, done.stderr) == (code, f"tool: the answer is lost: {says}\n")


def test_a_refusal_is_a_line_and_an_object(capsys):
    assert streams.refuse("tool", "--x: got 1, wanted 2", True) == 2
    printed = capsys.readouterr()
    assert printed.err == "tool: --x: got 1, wanted 2\n"
    assert json.loads(printed.out) == {"ok": False, "cannot": "--x: got 1, wanted 2"}
    assert streams.refuse("tool", "no", False, 3) == 3 and capsys.readouterr().out == ""


KERNELS = ("bench", "kernels", "--device", "cpu", "--suite", "route_quant", "--rounds", "1", "--tokens", "1")
COLLECTIVES = ("bench", "collectives", "--device", "cpu", "--rounds", "1", "--sizes", "8", "--tokens", "1")
MOE = ("probe", "moe", "--device", "cpu", "--hidden-size", "128", "--intermediate-size", "512", "--rounds", "1",
       "--num-experts", "8")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "where", "code"),
    (((*KERNELS, "--json"), "closed", 141), (KERNELS, "full", 74), (COLLECTIVES, "closed", 141), (MOE, "closed", 141),
     ((*MOE, "--json"), "full", 74), (("probe", "p2p", "--rehearse", "2", "--bytes", "4096"), "full", 74)),
)  # fmt: skip
def test_the_tools_end_without_a_traceback(tool, where, code):
    done = child(where, "-m", f"xpu_moe.{tool[0]}", *tool[1:])
    assert done.returncode == code, done.stderr[-2000:]
    assert done.stderr.count("the answer is lost: ") == 1 and "Traceback" not in done.stderr
