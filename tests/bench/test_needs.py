"""Tools in a Python without torch, or with a broken one: one line that says what to type, and each tool's code."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
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
    with tempfile.TemporaryDirectory() as cache:  # what a killed probe left in yours is not swept here, with a line
        environ = {"TMPDIR": str(out.parent), "XPU_MOE_CACHE": cache}
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environ)


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


BROKEN = [
    # what stands in the package's __init__.py, what the line says of it
    ('raise OSError("libtorch_cpu.so: cannot open\\n shared object file")',
     "(OSError: libtorch_cpu.so: cannot open shared object file)"),
    ("from torch import _C", "(ImportError: cannot import name '_C' from partially initialized module 'torch'"),
    ("import torch._C", "(ModuleNotFoundError: No module named 'torch._C')"),
    ("def", "(SyntaxError: invalid syntax (__init__.py, line 1))"),
    ('raise ImportError("please read all of this") from OSError("undefined symbol: x")',
     "(OSError: undefined symbol: x)"),
    (None, "(no package, but a folder without one: "),
]  # fmt: skip


@pytest.mark.parametrize(("source", "words"), BROKEN)
def test_an_installed_module_that_does_not_import_is_one_line(source, words, tmp_path):
    (tmp_path / "torch").mkdir()
    if source is not None:
        (tmp_path / "torch" / "__init__.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-S", "-c", "from xpu_moe import needs; print(needs.unusable('torch'))"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"torch is installed for {sys.executable} and does not import {words}"), done.stderr
    assert line.endswith("-m pip install --force-reinstall torch")


def test_what_a_module_needs_in_turn_is_named(tmp_path):
    (tmp_path / "torch.py").write_text("import no_such_module_here.inner")
    done = subprocess.run(
        [sys.executable, "-S", "-c", "from xpu_moe import needs; print(needs.unusable('torch'))"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.startswith("no_such_module_here is not installed for "), done.stderr


@pytest.mark.parametrize(("tool", "code", "broken"), [
    (("probe", "moe"), 2, "torch"),
    (("probe", "moe", "--emulate"), 2, "torch"),
    (("bench", "kernels"), 2, "torch"),
    (("bench", "collectives"), 2, "torch"),
    (("bench", "collectives", "--device", "cpu"), 2, "torch"),
    (("probe", "p2p", "--rehearse", "2"), 2, "numpy"),
    (("demo", "{out}"), 3, "torch"),
    (("demo", "{out}"), 3, "tokenizers"),
])  # fmt: skip
def test_a_broken_installation_is_one_line_with_what_to_type(tool, code, broken, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / f"{broken}.py").write_text('raise OSError("libgone.so: cannot open shared object file")')
    room, *rest = (part.format(out=tmp_path / "made" / "m") for part in tool)
    done = subprocess.run(
        [sys.executable, "-m", f"xpu_moe.{room}", *rest, "--json"], cwd=ROOT, capture_output=True, text=True,
        timeout=60, env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(site), "XPU_MOE_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    said = json.loads(done.stdout)
    assert len(done.stderr.splitlines()) == 1
    assert said == {"ok": False, "cannot": done.stderr.split(": ", 1)[1].strip()}
    assert "does not import (OSError: libgone.so: cannot open shared object file); take" in said["cannot"]
    assert said["cannot"].endswith(f"-m pip install --force-reinstall {broken}")
    assert not list(tmp_path.glob("made/*"))


def test_what_is_here_is_not_missed():
    assert needs.missing("torch", "numpy") == needs.unusable("torch", "numpy") == ""
    assert needs.missing("numpy", "no_such_module_here").startswith("no_such_module_here is not installed for ")
