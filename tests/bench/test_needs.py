"""Tools in a Python without torch: one line that says what to type, and the code that each documents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from xpu_moe import needs

ROOT = Path(__file__).resolve().parents[2]

TOOLS = [
    (("probe", "moe"), 2, "torch"),
    (("probe", "allreduce", "--device", "cpu"), 4, "torch"),
    (("probe", "allreduce", "--device", "cpu", "--backend", "gloo", "--world", "2"), 4, "torch"),
    (("probe", "p2p", "--rehearse", "2"), 2, "numpy"),
    (("bench", "kernels"), 2, "torch"),
    (("bench", "kernels", "--device", "cuda", "--suite", "moe"), 2, "torch"),
    (("bench", "collectives"), 2, "torch"),
    (("bench", "collectives", "--device", "cpu"), 2, "torch"),
    (("demo", "{out}"), 3, "tokenizers, safetensors and torch"),
    (("demo", "{out}", "--config-only"), 3, "tokenizers"),
]


def bare(tool: tuple[str, ...], out: Path) -> subprocess.CompletedProcess:
    """A tool in a Python that has the standard library alone."""
    room, *rest = (part.format(out=out) for part in tool)
    command = [sys.executable, "-S", "-m", f"xpu_moe.{room}", *rest]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, env={"TMPDIR": str(out.parent)}
    )


@pytest.mark.parametrize(("tool", "code", "lacking"), TOOLS)
def test_what_is_missing_is_one_line_with_what_to_type(tool, code, lacking, tmp_path):
    done = bare((*tool, "--json"), tmp_path / "m")
    assert done.returncode == code, done.stderr
    verb = "are" if " " in lacking else "is"
    assert len(done.stderr.splitlines()) == 1 and f": {lacking} {verb} not installed for " in done.stderr
    said = json.loads(done.stdout)
    assert said == {"ok": False, "cannot": done.stderr.split(": ", 1)[1].strip()}
    assert "(.venv/bin/python), or type: " in said["cannot"]
    assert said["cannot"].endswith(f"-m pip install {lacking.replace(' and', '').replace(',', '')}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tool", ["moe", "allreduce", "p2p", "kernels", "collectives"])
def test_the_help_needs_nothing(tool, tmp_path):
    room = "bench" if tool in ("kernels", "collectives") else "probe"
    done = bare((room, tool, "--help"), tmp_path / "m")
    assert done.returncode == 0 and "--json" in done.stdout, done.stderr


def test_what_is_here_is_not_missed():
    assert needs.missing("torch", "numpy") == ""
    assert needs.missing("numpy", "no_such_module_here").startswith("no_such_module_here is not installed for ")
