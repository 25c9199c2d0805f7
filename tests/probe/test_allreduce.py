"""The all-reduce probe on gloo ranks: right numbers, every fault with its code and message, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.probe.runs import TINY, Run, interrupt, marked, probe, rank_pid
from xpu_moe.env.read import snapshot
from xpu_moe.probe import allreduce

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("world", [2, 4])
def test_the_numbers_are_right(world, tmp_path):
    run = probe(tmp_path, "--device", "cpu", "--world", str(world), "--sizes", "4,8,4100,6144,40028")
    report = run.report
    assert run.code == 0 and report["verdict"] == "ok", run.stderr
    assert (report["schema"], report["backend"], report["world"]) == (1, "gloo", world)
    assert [(r["bytes"], r["form"]) for r in report["rows"]] == [
        (size, form) for size in (4, 8, 4100, 6144, 40028) for form in ("in_place", "clone")
    ]
    assert all(r["ok"] and 0 < r["p50_us"] <= r["p99_us"] for r in report["rows"])
    assert "libtorch" in report["library"]["path"] and report["library"]["version"]
    assert report["projection"]["calls"] == 187 and report["projection"]["ms_per_token"] > 0
    assert {"name": "GLOO_SOCKET_IFNAME", "value": "lo", "origin": "profile"} in report["environment"]
    assert report["stuck"] is None
    assert run.left_behind() == []


FAULTS = [
    # (fault, exit code, verdict, rank, phase)
    ("kill@init:1", 4, "dead", 1, "init"),
    ("kill@warmup:0", 4, "dead", 0, "warmup"),
    ("kill@timed:1", 4, "dead", 1, "timed"),
    ("exit@check:1", 4, "dead", 1, "check"),
    ("sleep@init:1", 3, "hang", 1, "init"),
    ("sleep@timed:0", 3, "hang", 0, "timed"),
    ("sleep@close:1", 3, "hang", 1, "close"),
]


@pytest.mark.parametrize("fault,code,verdict,rank,phase", FAULTS)
def test_a_fault_ends_the_run_and_is_named(fault, code, verdict, rank, phase, tmp_path):
    run = probe(tmp_path, *TINY, "--timeout", "6" if verdict == "hang" else "60", "--inject", fault)
    assert (run.code, run.report["verdict"]) == (code, verdict), run.stderr
    if verdict == "dead":
        assert run.seconds < 30, "a death is no matter of --timeout"
        assert run.report["dead"][0]["rank"] == rank and run.report["dead"][0]["phase"] == phase
        assert f"rank {rank}" in run.report["says"]
    else:
        stuck = run.report["stuck"]
        assert stuck["ranks"] == [rank] and stuck["phase"] == phase
        assert "faults.py" in stuck["where"][str(rank)]
        assert (stuck["bytes"] is not None) == (phase == "timed")
    assert run.report["causes"]
    assert run.left_behind() == []


def test_wrong_data_is_found_and_placed(tmp_path):
    run = probe(tmp_path, *TINY, "--inject", "wrong@check:1")
    assert (run.code, run.report["verdict"]) == (5, "wrong"), run.stderr
    assert not any(row["ok"] for row in run.report["rows"])
    first = run.report["wrong"][0]
    assert (first["bytes"], first["count"], first["first"]) == (8, 1, 1) and first["got"] == first["wanted"] + 1
    assert run.left_behind() == []


def test_ranks_on_different_libraries_do_not_run(tmp_path):
    run = probe(tmp_path, *TINY, "--inject", "version@init:1")
    assert run.code == 4 and "different libraries" in run.report["says"] and "0.0.0-other" in run.report["says"]
    assert run.report["rows"] == [] and "different libraries" in run.report["causes"][0]
    assert run.left_behind() == []


def test_a_taken_port_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run = probe(tmp_path, *TINY, "--timeout", "60", "--port", str(taken.getsockname()[1]))
    assert run.code == 4 and "port of the rendezvous is taken" in run.report["causes"][0], run.report
    assert run.report["dead"][0]["rank"] == 0
    assert run.left_behind() == []


@pytest.mark.soak
def test_a_free_port_serves(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = probe(tmp_path, *TINY, "--port", str(port))
    assert run.code == 0, run.stderr


def _own_shm(command: str) -> tuple[str, ...]:
    """A prefix that gives the run a /dev/shm of its own, spoilt by `command`."""
    user = () if os.geteuid() == 0 else ("--map-root-user",)
    return ("unshare", *user, "--mount", "sh", "-c", f'{command} && exec "$0" "$@"')


FULL = "mount -t tmpfs -o size=64k none /dev/shm && dd if=/dev/zero of=/dev/shm/all bs=64k count=1 status=none"
READ_ONLY = "mount -t tmpfs -o ro none /dev/shm"


@pytest.mark.parametrize("spoil,word", [(FULL, "full"), (READ_ONLY, "cannot be written")])
def test_spoilt_shared_memory_is_named(spoil, word, tmp_path):
    run = probe(tmp_path, *TINY, prefix=_own_shm(spoil))
    assert run.code == 0 and word in run.report["notes"][0], run.stderr
    needing = probe(tmp_path, *TINY, "--backend", "nccl", "--device", "cuda", prefix=_own_shm(spoil))
    assert needing.code == 4 and word in needing.report["says"], needing.stderr
    assert "/dev/shm" in needing.report["causes"][0]
    assert run.left_behind() == [] and needing.left_behind() == []


@pytest.mark.parametrize("moment,number", [("start", signal.SIGINT), ("init", signal.SIGINT), ("init", signal.SIGTERM)])
def test_a_signal_ends_the_run_at_any_moment(moment, number, tmp_path):
    environ = {"XPU_MOE_CACHE": str(tmp_path / "cache")}
    run = Run(tmp_path, (*TINY, "--inject", "sleep@timed:0", "--timeout", "60"), environ).start()
    run.where(moment)
    begun = time.monotonic()
    interrupt(run, number)
    run.finish(limit_s=20)
    assert time.monotonic() - begun < 6
    assert run.code == 128 + number and run.report["verdict"] == "interrupted"
    assert run.left_behind() == []


def test_ranks_die_with_a_parent_that_is_killed_and_the_next_run_sweeps(tmp_path):
    environ = {"XPU_MOE_CACHE": str(tmp_path / "cache")}
    run = Run(tmp_path, (*TINY, "--inject", "sleep@timed:0", "--timeout", "60"), environ).start()
    run.where("init")
    run.process.kill()
    run.finish(limit_s=20)
    deadline = time.monotonic() + 20  # a rank that still imports torch asks for its parent after that
    while marked(run.mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert marked(run.mark) == []
    after = probe(tmp_path, *TINY, "--sizes", "8")
    assert after.code == 0 and "left by a run that was killed" in after.stderr
    assert run.left_behind() == [] and after.left_behind() == []


@pytest.mark.soak
def test_a_rank_that_is_stopped_while_it_loads_is_named_and_not_those_that_wait_for_it(tmp_path):
    environ = {"XPU_MOE_CACHE": str(tmp_path / "cache")}
    run = Run(tmp_path, (*TINY, "--timeout", "3", "--start-timeout", "15", "--inject", "sleep@timed:0"), environ)
    run.start().where("start")
    os.kill(rank_pid(run, 1), signal.SIGSTOP)
    run.finish(limit_s=60)
    assert (run.code, run.report["verdict"]) == (3, "hang"), run.stderr
    assert run.report["stuck"]["ranks"] == [1]
    assert run.report["stuck"]["where"]["1"].startswith("stopped by a signal")
    assert run.left_behind() == []


def test_what_the_run_did_not_create_survives(tmp_path):
    foreign = Path(f"/dev/shm/xpu_moe-test-foreign-{os.getpid()}")
    foreign.write_bytes(b"not yours")
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        run = probe(tmp_path, *TINY, "--inject", "kill@timed:1")
        assert run.code == 4, run.stderr
        assert foreign.read_bytes() == b"not yours" and stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        foreign.unlink(missing_ok=True)


def _torchrun(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python",
        sys.executable, "-m", "xpu_moe.probe", "allreduce", "--json", "--sizes", "8,6144", *arguments,
    ]  # fmt: skip
    environ = {**snapshot(), "XPU_MOE_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, cwd=tmp_path)


def test_it_joins_torchrun(tmp_path):
    done = _torchrun(tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)  # one object: rank 0's
    assert report["world"] == 2 and report["verdict"] == "ok" and len(report["rows"]) == 4
    assert not list(tmp_path.glob("xpu_moe-probe-*"))


@pytest.mark.soak
def test_under_torchrun_a_dead_rank_ends_all(tmp_path):
    done = _torchrun(tmp_path, "--inject", "kill@timed:1")
    assert done.returncode != 0
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    dead = [d for report in reports for d in report["dead"]]
    assert any(d["rank"] == 1 and "SIGKILL" in d["how"] for d in dead), done.stdout
    assert not list(tmp_path.glob("xpu_moe-probe-*"))


def test_bad_arguments_end_with_2(capsys, private_cache):
    for arguments in (
        ("--sizes", "7"), ("--world", "0"), ("--inject", "burn"), ("--timeout", "0"), ("--sizes", "x"),
        ("--sizes", "²"), ("--timeout", "nan"), ("--start-timeout", "inf"), ("--world", "2", "--inject", "kill@init:2"),
        ("--plot", "/no/such/folder/latency.png"), ("--plot", "latency.txt"), ("--world", "100000"),
        ("--port", "70000"), ("--port", "-1"),
    ):  # fmt: skip
        assert allreduce.main(["--device", "cpu", "--json", *arguments]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("allreduce: ")
        assert json.loads(printed.out) == {"ok": False, "cannot": printed.err.removeprefix("allreduce: ").strip()}
        assert arguments[0] != "--sizes" or "--sizes: got " in printed.err


def test_what_is_in_the_machine_decides_where_nothing_is_asked_for(tmp_path):
    run = probe(tmp_path, "--sizes", "8", "--max-bytes", "8")
    assert run.code == 0, run.stderr
    if run.report["device"] == "cpu":
        assert (run.report["backend"], run.report["world"]) == ("gloo", 4)


def test_without_cards_the_ranks_say_nothing_about_them(tmp_path, capsys, private_cache):
    import torch

    missing = "xpu" if torch.cuda.is_available() else "cuda"
    wanted = "nccl" if missing == "cuda" else "xccl"
    for asked, says in (
        (["--device", missing], f"--device {missing}: this torch sees none"),
        (["--backend", wanted], f"--device {missing}: this torch sees none"),
        (["--backend", wanted, "--device", "cpu"], f"--backend {wanted}: is for {missing}, got --device cpu"),
        (["--device", "cpu", "--max-bytes", "3"], "--max-bytes: got 3, which leaves out every size"),
        (["--device", "cpu", "--plot", "/dev/null"], "--plot: got '/dev/null', wanted a .png or .svg or .pdf file"),
    ):
        assert allreduce.main([*asked, "--json"]) == 2
        assert says in json.loads(capsys.readouterr().out)["cannot"]
    if not (torch.cuda.is_available() or torch.xpu.is_available()):
        run = probe(tmp_path, "--max-bytes", "8")
        assert run.code == 0 and "say nothing about cards" in run.report["notes"][-1]
