"""A demo checkpoint, a free port, a stand-in vllm command, and a way to call the launcher."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
SECRETS = ("HF_TOKEN", "VLLM_API_KEY")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Path:
    """A whole tiny checkpoint."""
    from xpu_moe.demo.shape import Shape
    from xpu_moe.demo.write import write

    return write(tmp_path_factory.mktemp("models") / "tiny", Shape(quant="none"))[0]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@dataclass
class Launcher:
    """Calls `python -m xpu_moe.launch` with the stand-in; `told()` is what the stand-in saw."""

    folder: Path
    port: int
    environ: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen] = field(default_factory=list)

    def start(self, *arguments: str, mode: str = "", **environ: str) -> subprocess.Popen:
        given = {**self.environ, "STUB_MODE": mode, **environ}
        command = [sys.executable, "-P", "-m", "xpu_moe.launch", "--port", str(self.port), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "surrogateescape"}
        child = subprocess.Popen(command, env=given, **pipes)
        self.started.append(child)
        return child

    def run(self, *arguments: str, mode: str = "", **environ: str) -> subprocess.CompletedProcess:
        child = self.start(*arguments, mode=mode, **environ)
        try:
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def told(self, wait: float = 20) -> dict:
        file = self.folder / "told.json"
        until(file.exists, wait)
        return json.loads(file.read_text())


@pytest.fixture
def launcher(tmp_path, free_port) -> Iterator[Launcher]:
    vllm = tmp_path / "bin" / "vllm"
    vllm.parent.mkdir()
    vllm.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{HERE / 'stub_vllm.py'}' \"$@\"\n")
    vllm.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name not in SECRETS}
    environ |= {
        "XPU_MOE_VLLM": str(vllm),
        "XPU_MOE_CACHE": str(tmp_path / "cache"),
        "STUB_OUT": str(tmp_path / "told.json"),
    }
    made = Launcher(tmp_path, free_port, environ)
    yield made
    for child in made.started:  # a failed test leaves a server behind; the supervisor ends it with its launcher
        child.kill()
        child.wait()


def until(true, seconds: float) -> None:
    """Wait until `true()`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {true}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def end(child: subprocess.Popen, number: int = signal.SIGINT) -> tuple[str, str, float]:
    """Send a signal and wait: stdout, stderr, seconds."""
    begun = time.monotonic()
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    return out, err, time.monotonic() - begun
