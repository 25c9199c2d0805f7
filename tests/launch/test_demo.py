"""The real thing: vLLM serves the demo checkpoint through our plugin."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.conftest import PROJECT, alive, end, until
from tests.launch.paths import system_path
from xpu_moe.launch.supervisor import descendants

SCRIPT = PROJECT / "scripts" / "serve_minimax.sh"


@pytest.fixture
def demo(tmp_path, free_port):
    """Calls the script with a cache of its own; the environment that runs the tests is the active one."""
    started = []

    def start(*arguments: str, **environ: str) -> subprocess.Popen:
        prefix = os.path.dirname(os.path.dirname(os.sys.executable))
        given = {**os.environ, "VIRTUAL_ENV": prefix, "XPU_MOE_CACHE": str(tmp_path / "cache"), **environ}
        command = [str(SCRIPT), "--demo", "--port", str(free_port), *arguments]
        child = subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()


def check(demo, *arguments: str) -> tuple[dict, str]:
    out, err = demo("--check", "--json", *arguments).communicate(timeout=400)
    assert out, err
    summary = json.loads(out)
    assert summary["exit_code"] == 0, (summary["error"], err)
    return summary, err


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(500)
def test_demo_check(demo):
    summary, err = check(demo)
    assert summary["completion"] and summary["chat"]
    assert len(summary["token_ids"]) == 16 and len(summary["logprobs"]) == 16
    assert all(math.isfinite(value) and value <= 0 for value in summary["logprobs"])
    assert summary["backend"] == "cpu_grouped" and summary["reason"]
    assert summary["vllm"].startswith("0.32.0") and summary["versions"]["torch"].startswith("2.13.0")
    assert summary["timings"]["stop"] < 10
    for words in ("preflight:", "phase load", "phase canary", "stopped in"):
        assert words in err


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("number", "tp"), [(signal.SIGINT, "1"), (signal.SIGKILL, "2")])
def test_a_serving_demo_ends_with_all_that_it_started(demo, number, tp):
    before = set(os.listdir("/dev/shm"))
    child = demo("--tp", tp)
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("curl"):
            break
    below = descendants(child.pid)
    assert len(below) >= 3  # supervisor, API server, engine, worker
    if number == signal.SIGKILL:
        child.kill()
        until(lambda: not any(alive(pid) for pid in below), 15)
    else:
        _, err, seconds = end(child, number)
        assert child.returncode == 130 and seconds < 10, err
        assert not any(alive(pid) for pid in below)
    left = set(os.listdir("/dev/shm")) - before
    assert not [name for name in left if any(name.startswith(kind) for kind in ("psm_", "vllm_dist_", "sem.mp-"))]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_stopped_worker_is_a_stall_with_its_phase(demo):
    """vLLM is frozen as soon as it is there: the launcher tells the phase within the limit, and ends."""
    child = demo("--check", "--json", XPU_MOE_STALL_LIMIT="15")
    until(lambda: frozen(child.pid), 60)
    begun = time.monotonic()
    summary = json.loads(child.communicate(timeout=120)[0])
    assert time.monotonic() - begun < 15 + 30
    assert summary["exit_code"] == 4 and "stalled in phase python" in summary["error"]


def frozen(launcher: int) -> bool:
    """Stops the server's process, once it is there."""
    for pid in descendants(launcher):
        with contextlib.suppress(OSError):  # it is gone: the launcher asks a Python or a tool now and then
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"serve" in words and any(word.endswith(b"/vllm") for word in words[:2]):
                os.kill(pid, signal.SIGSTOP)
                return True
    return False


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.vllm
@pytest.mark.timeout(1200)
def test_two_commands_on_a_fresh_clone(tmp_path, free_port):
    """What the README promises: clone, run; and a second run that reuses everything."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(PROJECT), str(clone)], check=True)
    environ = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")}
    environ |= {"PATH": system_path(), "XPU_MOE_CACHE": str(tmp_path / "cache")}
    command = [str(clone / "scripts" / "serve_minimax.sh"), "--demo", "--check", "--json", "--port", str(free_port)]
    outputs = []
    for _ in range(2):
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
        outputs.append((json.loads(done.stdout), done.stderr))
    (first, told), (second, told_again) = outputs
    assert "installing" in told and "installing" not in told_again
    assert first["token_ids"] == second["token_ids"]
    site = next((clone / ".venv" / "lib").glob("python*/site-packages"))
    assert not (site / "triton").exists() and not list(site.glob("nvidia*"))
