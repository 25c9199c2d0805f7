"""A whole launch with a stand-in vllm: ready after the canary, every failure has its code, every end is clean."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.conftest import alive, end, until
from xpu_moe.launch.errors import CANARY, ENGINE, INTERRUPTED, OK, USAGE

STALL_S = "6"  # two Pythons start within it, also where other work has the cores
KEYS = {"completion", "chat", "token_ids", "logprobs", "backend", "reason", "vllm", "versions", "seconds"}


def test_check_answers_and_ends(launcher, checkpoint):
    done = launcher.run("--model", str(checkpoint), "--check", "--json")
    assert done.returncode == OK, done.stderr
    summary = json.loads(done.stdout)
    assert summary.keys() >= KEYS
    assert summary["completion"] == "abc" and summary["chat"] == "hello" and summary["token_ids"] == [7, 8, 9]
    assert summary["logprobs"] == [-1.0, -0.5, -2.0]
    assert "phase canary" in done.stderr and "preflight:" in done.stderr
    names = [phase["phase"] for phase in summary["phases"]]
    assert names == ["python", "config", "engine", "collectives", "load", "serve", "canary", "serving"]
    assert not alive(launcher.told()["pid"])
    assert summary["command"][1:3] == ["serve", str(checkpoint)]


@pytest.mark.slow
def test_without_json_the_answer_and_a_curl_line_are_on_stdout(launcher, checkpoint):
    done = launcher.run("--model", str(checkpoint), "--check", "--input-len", "8", "--num-prompts", "2")
    assert done.returncode == OK, done.stderr
    assert "'abc'" in done.stdout and f"curl -s http://127.0.0.1:{launcher.port}/v1/chat/completions" in done.stdout
    assert "bench serve" in done.stdout and "--random-input-len 8" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("die", ENGINE, "vLLM ended with code 1 in phase load"),
        ("dead-engine", ENGINE, "died at the first request"),
        ("drift", CANARY, "two answers"),
        ("nan", CANARY, "not finite"),
    ],
)
def test_failures_have_their_codes(launcher, checkpoint, mode, code, words):
    done = launcher.run("--model", str(checkpoint), "--check", "--json", mode=mode)
    assert done.returncode == code, done.stderr
    assert words in done.stderr.splitlines()[-1]
    assert json.loads(done.stdout)["error"] and json.loads(done.stdout)["exit_code"] == code
    assert "Traceback" not in done.stderr and not alive(launcher.told()["pid"])


@pytest.mark.slow
def test_a_known_message_is_explained(launcher, checkpoint):
    done = launcher.run("--model", str(checkpoint), "--check", mode="die")
    assert "Try:" in done.stderr and "likely:" in done.stderr


@pytest.mark.slow
def test_a_stuck_worker_is_reported_by_phase_within_its_limit(launcher, checkpoint):
    begun = time.monotonic()
    done = launcher.run("--model", str(checkpoint), "--check", mode="stall", XPU_MOE_STALL_LIMIT=STALL_S)
    assert done.returncode == ENGINE
    assert "stalled in phase load (loading weights)" in done.stderr.splitlines()[-1]
    assert time.monotonic() - begun < int(STALL_S) + 10


@pytest.mark.slow
def test_a_canary_that_hangs_is_a_stall(launcher, checkpoint):
    done = launcher.run("--model", str(checkpoint), "--check", mode="slow", XPU_MOE_STALL_LIMIT=STALL_S)
    assert done.returncode == ENGINE and "stalled in phase canary" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "deaf"), [(signal.SIGINT, "deaf,"), (signal.SIGTERM, ""), (signal.SIGHUP, "")])
def test_signals_end_everything_in_time(launcher, checkpoint, number, deaf):
    child = launcher.start("--model", str(checkpoint), mode=f"{deaf}orphan")
    told = launcher.told()
    assert alive(told["orphan"])
    until_ready(child)
    _, err, seconds = end(child, number)
    assert child.returncode == INTERRUPTED, err
    assert seconds < 10
    assert not alive(told["pid"]) and not alive(told["orphan"])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_children_die_with_the_launcher(launcher, checkpoint, number):
    child = launcher.start("--model", str(checkpoint), mode="orphan,stall,shm")
    told = launcher.told()
    time.sleep(1.2)  # the supervisor looks at shared memory every half second
    child.send_signal(number)
    child.wait(30)
    until(lambda: not alive(told["pid"]) and not alive(told["orphan"]), 10)
    until(lambda: not os.path.exists(told["mapped"]), 5)


def test_only_this_runs_shared_memory_and_processes_go(launcher, checkpoint):
    """A foreign process and a foreign file, both there during the run, outlive it."""
    sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    foreign = subprocess.Popen([sys.executable, "-c", sleeper])
    files = [Path(f"/dev/shm/foreign-{os.getpid()}-{number}") for number in range(2)]
    files[0].write_bytes(b"x" * 4096)
    try:
        child = launcher.start("--model", str(checkpoint), mode="shm")
        told = launcher.told()
        files[1].write_bytes(b"y" * 4096)  # born during the run, used by somebody else
        with files[1].open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            until_ready(child)
            assert Path(told["mapped"]).exists()
            end(child)
        assert not Path(told["mapped"]).exists()
        assert all(file.exists() for file in files) and foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()
        for file in files:
            file.unlink(missing_ok=True)


@pytest.mark.slow
def test_secrets_reach_no_output(launcher, checkpoint):
    """Planted in the environment and behind `--`; looked for in every stream and every file."""
    planted = {"HF_TOKEN": "hf-planted-one", "VLLM_API_KEY": "planted-two", "MY_SECRET": "planted-three"}
    for extra in ([], ["--dry-run"], ["--print-systemd"], ["--print-container"], ["--check"], ["--check", "--json"]):
        done = launcher.run("--model", str(checkpoint), *extra, "--", "--api-key", "planted-four", **planted) \
            if extra else launcher.run("--model", "/nowhere", "--", "--api-key", "planted-four", **planted)  # fmt: skip
        assert done.returncode == (OK if extra else USAGE), done.stderr
        for secret in (*planted.values(), "planted-four"):
            assert secret not in done.stdout + done.stderr, (extra, secret)
    told = launcher.told()
    assert told["environ"]["VLLM_API_KEY"] == "planted-four" and "--api-key" not in told["argv"]
    for file in (launcher.folder / "cache").rglob("*"):
        if file.is_file():
            assert b"planted" not in file.read_bytes(), file


@pytest.mark.slow
def test_trust_remote_code_is_never_ours(launcher, checkpoint):
    launcher.run("--model", str(checkpoint), "--check")
    assert "--trust-remote-code" not in launcher.told()["argv"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["with spaces", 'it\'s "quoted"', "$(touch INJECTED)`id`", "two\nlines", "-leading", "ü"]
)
def test_strange_model_paths_arrive_as_they_are(launcher, checkpoint, tmp_path, name):
    folder = tmp_path / name
    folder.symlink_to(checkpoint)
    done = launcher.run(f"--model={folder}", "--check")
    assert done.returncode == OK, done.stderr
    assert launcher.told()["argv"][:2] == ["serve", str(folder)]
    assert not list(tmp_path.rglob("INJECTED"))


@pytest.mark.slow
def test_preflight_errors_stop_and_force_goes_on(launcher, checkpoint, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in checkpoint.iterdir():
        if not file.name.startswith("model-00002"):
            (broken / file.name).symlink_to(file)
    done = launcher.run("--model", str(broken), "--check")
    assert done.returncode == USAGE and "preflight:" in done.stderr.splitlines()[-1], done.stderr
    assert not (launcher.folder / "told.json").exists()
    done = launcher.run("--model", str(broken), "--check", "--force")
    assert done.returncode == OK and "--force: going on" in done.stderr


@pytest.mark.slow
def test_canary_on_demand(launcher, checkpoint):
    child = launcher.start("--model", str(checkpoint), VLLM_API_KEY="a-key-of-mine")
    until_ready(child)
    done = launcher.run("--canary", VLLM_API_KEY="a-key-of-mine")
    assert done.returncode == OK and "'abc'" in done.stdout
    assert launcher.run("--canary", VLLM_API_KEY="another").returncode == CANARY
    end(child)
    assert launcher.run("--canary").returncode == CANARY


@pytest.mark.slow
def test_a_path_that_is_no_text(launcher, checkpoint, tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff\xfe")
    os.symlink(checkpoint, folder)
    done = launcher.run(f"--model={folder}", "--dry-run")
    assert done.returncode == OK and "Traceback" not in done.stderr, done.stderr
    done = launcher.run(f"--model={folder}", "--check", "--json")
    assert done.returncode == OK, done.stderr
    assert launcher.told()["argv"][1] == folder


@pytest.mark.slow
def test_without_a_place_for_the_cache_one_line_says_so(launcher, checkpoint):
    done = launcher.run("--model", str(checkpoint), "--check", XPU_MOE_CACHE="/proc/no/such/place")
    assert done.returncode == 3 and "set XPU_MOE_CACHE" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_missing_vllm_is_told_under_its_variable(launcher, checkpoint):
    done = launcher.run("--model", str(checkpoint), "--check", XPU_MOE_VLLM="/no/such/vllm")
    assert done.returncode == USAGE and "XPU_MOE_VLLM='/no/such/vllm': no command" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_stop_the_server(launcher, checkpoint):
    """`serve … | head -1` and a closed terminal: the streams are gone, the server serves on."""
    child = launcher.start("--model", str(checkpoint))
    until_ready(child)
    assert child.stdout and child.stderr
    child.stdout.close()
    child.stderr.close()
    assert launcher.run("--canary").returncode == OK
    child.send_signal(signal.SIGTERM)
    assert child.wait(15) == INTERRUPTED


@pytest.mark.slow
@pytest.mark.parametrize("as_json", (False, True))
def test_a_check_whose_answer_cannot_be_written_says_so(launcher, checkpoint, as_json):
    command = [sys.executable, "-P", "-m", "xpu_moe.launch", "--port", str(launcher.port), "--model", str(checkpoint)]
    command += ["--check", *(["--json"] if as_json else [])]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=launcher.environ, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 74 and done.stderr.count("the answer is lost: ") == 1, done.stderr
    assert "Traceback" not in done.stderr and not alive(launcher.told()["pid"])


@pytest.mark.slow
def test_systemd_hears_ready_after_the_canary(launcher, checkpoint, tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(30)
        child = launcher.start("--model", str(checkpoint), NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert listener.recv(100) == b"READY=1"
        _, err, _ = end(child, signal.SIGTERM)
        assert "phase canary" in err
        assert listener.recv(100) == b"STOPPING=1"


def until_ready(child: subprocess.Popen) -> None:
    """Reads stdout up to the curl line."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("curl"):
            return
    raise AssertionError(child.stderr.read() if child.stderr else "no output")
