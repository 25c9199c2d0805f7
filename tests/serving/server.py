"""A vLLM server in a process group of its own: started, asked, stopped, and nothing of it left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xpu_moe.serving import report

READY_S, STOP_S = 240, 30
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is on this machine


@dataclass(frozen=True)
class Server:
    """Where it answers, and what it wrote."""

    url: str
    log: Path
    reports: Path

    def told(self) -> dict:
        return report.summary(self.reports)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextlib.contextmanager
def serving(model: Path, folder: Path, *arguments: str, tp: int = 1) -> Iterator[Server]:
    """Serve `model` as "tiny" on a free port; yields when /health answers."""
    folder.mkdir(parents=True)
    port = _free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", "512", "--tensor-parallel-size", str(tp), "--disable-uvicorn-access-log", *arguments,
    ]  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))
    environ = {
        **os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "XPU_MOE_REPORT": str(folder / "report"),
    }  # fmt: skip
    if tp > 1:  # a core a rank; ranks may share one where there are too few
        environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(cores[rank % len(cores)]) for rank in range(tp))
    server = Server(f"http://127.0.0.1:{port}", folder / "log", folder / "report")
    with server.log.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ, start_new_session=True, cwd=folder)
        try:
            _wait(process, server)
            yield server
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait(process: subprocess.Popen, server: Server) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"server ended with {process.returncode}:\n{server.text()[-4000:]}")
        try:
            _OPENER.open(f"{server.url}/health", timeout=2).close()
        except OSError:
            time.sleep(0.3)
        else:
            return
    raise RuntimeError(f"server not ready after {READY_S} s:\n{server.text()[-4000:]}")


def _stop(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)
