"""`scripts/serve_minimax.sh` in the system's Python: bad input is refused within two seconds and makes nothing."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.conftest import PROJECT
from tests.launch.paths import system_path
from tests.launch.test_checks import folder

SCRIPT = PROJECT / "scripts" / "serve_minimax.sh"
LIMIT = 2.0  # seconds, with the system's Python


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A copy of the checkout, without environments; no active environment; a home of its own."""
    copy = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(
        ".venv*", ".git", "build", "__pycache__", ".*_cache", "*.egg-info", "docs", "tests"
    )
    shutil.copytree(PROJECT, copy, ignore=ignored, symlinks=True)
    environ = {"HOME": str(tmp_path / "home"), "PATH": system_path(), "LANG": "C.UTF-8"}

    def call(*arguments: str, **more: str) -> subprocess.CompletedProcess:
        command = [str(copy / "scripts" / "serve_minimax.sh"), *arguments]
        return subprocess.run(
            command, env={**environ, **more}, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    call.checkout, call.environ = copy, environ  # type: ignore[attr-defined]
    return call


def used_by_children() -> float:
    """Seconds of a core that the processes used that this one has started and seen end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def everything(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.slow
def test_bad_input_is_told_in_one_line_before_anything_is_made(bare, tmp_path):
    llama = folder(tmp_path / "models" / "llama", {"model_type": "llama"})
    mini = folder(tmp_path / "models" / "mini")
    pickled = folder(tmp_path / "models" / "pickled", **{"pytorch_model.bin": b""})
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = str(holder.getsockname()[1])
        cases = (
            (["--model", "/no/such/folder"], "no such folder"),
            (["--model", str(llama)], "not a MiniMax-M2 checkpoint"),
            (["--model", str(pickled)], "pytorch_model.bin"),
            (["--model", str(mini), "--tp", "5"], "does not divide"),
            (["--demo", "--tp", "3"], "does not divide"),
            (["--demo", "--port", taken], f"--port {taken}"),
            (["--demo", "--port", "none"], "between 1 and 65535"),
            ([], "nothing to serve"),
            (["--nonsense"], "unrecognized"),
            (["--model", f"/{'a' * 300}"], "name too long"),
            (["--demo", "--host", f"{'a' * 80}.example"], "wanted an address"),
            (["--model", str(mini), "--dry-run", "--", "--model", "other"], "--model after --"),
        )
        before, elapsed, computed = everything(tmp_path), [], []
        for arguments, words in cases:
            begun, used = time.monotonic(), used_by_children()
            done = bare(*arguments)
            elapsed.append(time.monotonic() - begun)
            computed.append(used_by_children() - used)
            assert done.returncode == 2, (arguments, done.stderr)
            assert words in done.stderr and len(done.stderr.splitlines()) == 1, (arguments, done.stderr)
            assert not done.stdout
        assert everything(tmp_path) == before
    # On a machine that others use too, the least that elapsed says what is waited for, the rest is computed.
    assert min(elapsed) < LIMIT and sorted(computed)[len(computed) // 2] < LIMIT, (elapsed, computed)


@pytest.mark.slow
def test_the_environment_names_of_the_field(bare, tmp_path):
    mini = folder(tmp_path / "mini")
    done = bare("--dry-run", "--json", MODEL=str(mini), TP="1", MAX_NUM_SEQS="4", BLOCK_SIZE="64")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["model"] == str(mini) and plan["settings"]["max_num_seqs"]["origin"] == "environment MAX_NUM_SEQS"
    assert "--block-size" in plan["command"]
    assert bare("--dry-run", MODEL=str(mini), TP="two").returncode == 2


@pytest.mark.slow
def test_strange_paths_pass_through_the_shell_script(bare, tmp_path):
    for name in ("with spaces", 'it\'s "q"', "$(touch INJECTED)`id`", "two\nlines", "-dash"):
        mini = folder(tmp_path / "models" / name)
        done = bare(f"--model={mini}", "--dry-run", "--json")
        assert json.loads(done.stdout)["command"][2] == str(mini), done.stderr
    assert not list(tmp_path.rglob("INJECTED"))


@pytest.mark.slow
def test_plans_make_nothing(bare, tmp_path):
    before = everything(tmp_path)
    for argument in ("--dry-run", "--install-plan", "--print-container", "--print-systemd"):
        done = bare("--demo", argument)
        assert done.returncode == 0 and done.stdout, done.stderr
    assert everything(tmp_path) == before
    assert "pip install -q torch==2.13.0" in bare("--install-plan").stdout  # no model is needed to look at it


@pytest.mark.slow
def test_json_is_one_object_whatever_happens(bare, tmp_path, free_port):
    mini, secret = folder(tmp_path / "mini"), "SEKRET-of-the-test"
    model = ("--model", str(mini))
    cases = (
        (2, ("--nonsense", "--api-key", secret)),
        (2, ("--model", f"/no/such/{secret}")),
        (2, (*model, "--tp", "5")),
        (5, ("--canary", "--port", str(free_port))),
        (0, ("--profile", "list")),
        (0, ("--install-plan",)),
        (0, (*model, "--dry-run")),
        (0, (*model, "--print-container")),
        (0, (*model, "--print-systemd")),
    )
    for code, arguments in cases:
        done = bare("--json", *arguments, VLLM_API_KEY=secret)
        found = json.loads(done.stdout)
        assert done.returncode == code and isinstance(found, dict), (arguments, done.stderr)
        if code:
            assert found["exit_code"] == code and found["ok"] is False and found["error"] in done.stderr
        assert secret not in done.stdout + done.stderr, arguments
    done = bare("--canary", "--port", str(free_port), "--", "--json")
    assert done.returncode == 5 and not done.stdout  # vLLM's --json is not ours


@pytest.mark.slow
def test_help_names_every_exit_code(bare):
    text = " ".join(bare("--help").stdout.split())
    for words in ("2 usage", "3 environment", "4 engine", "5 canary", "130 interrupted"):
        assert words in text


def test_no_python_is_told(tmp_path):
    for tool in ("dirname", "readlink", "basename", "sh"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    done = subprocess.run([str(SCRIPT)], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 3 and "needs Python 3.11" in done.stderr


@pytest.mark.slow
def test_a_full_disk_while_the_demo_is_written(launcher):
    """Every file may have 20 kB here: what writing to a full disk looks like from inside."""

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    command = [os.sys.executable, "-P", "-m", "xpu_moe.launch", "--demo", "--check", "--port", str(launcher.port)]
    done = subprocess.run(command, env=launcher.environ, preexec_fn=small, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    assert "minimax-m2-auto-round" in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    demo = launcher.folder / "cache" / "demo"
    assert list(demo.iterdir()) == [], "half a checkpoint was left"
    done = launcher.run("--demo", "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_cache_that_others_may_write_to_is_refused(launcher, checkpoint):
    cache = launcher.folder / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    done = launcher.run("--model", str(checkpoint), "--check")
    assert done.returncode == 3 and "lets others write" in done.stderr.splitlines()[-1]
