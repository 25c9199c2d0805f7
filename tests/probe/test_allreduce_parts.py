"""The parts of the all-reduce probe that need no rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from xpu_moe.probe import allreduce
from xpu_moe.probe._allreduce import causes, data, faults, library, plot, report, run
from xpu_moe.probe._allreduce.plan import CALLS_PER_TOKEN, FORMS, PER_TOKEN, Plan, Step, steps
from xpu_moe.probe._watch import footprint
from xpu_moe.probe._watch.footprint import Footprint

# ---- plan -----------------------------------------------------------------------------------------------------------

WANTED = (
    4, 8, 4092, 4096, 4100, 6144, 6144 * 2, 6144 * 4, 6144 * 8, 6144 * 16, 6144 * 20480, 524288 - 4, 524288, 524288 + 4,
    (16 << 20) - 4, 16 << 20, (16 << 20) + 4, 128 << 20,
)  # fmt: skip


def test_every_size_is_measured_in_both_forms():
    made = steps("cpu")
    for size in WANTED:
        assert {step.form for step in made if step.bytes == size} == set(FORMS)


def test_one_size_is_divisible_by_no_world():
    elements = [step.bytes // (4 if step.dtype == "float32" else 2) for step in steps("cpu")]
    assert any(all(count % world for world in range(2, 65)) for count in elements)


def test_a_step_holds_whole_elements():
    for kind in ("cpu", "xpu", "cuda"):
        for dtype in ("bfloat16", "float16", "float32"):
            for step in steps(kind, dtype=dtype):
                assert step.bytes % getattr(torch, step.dtype).itemsize == 0 and step.rounds and step.calls
    with pytest.raises(ValueError, match="got 7 bytes, wanted a multiple of 2"):
        steps("cpu", sizes=[7])
    assert {step.bytes for step in steps("cpu", max_bytes=4096)} == {4, 8, 4092, 4096}


def test_a_plan_survives_its_file(tmp_path):
    plan = Plan("gloo", "cpu", 2, steps("cpu"), 30.0, "env://", inject="kill@init:1")
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan


def test_a_decoded_token_makes_187_calls():
    assert CALLS_PER_TOKEN == 187
    assert dict(PER_TOKEN) == {6144: 125, 8: 62}


# ---- data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8, 100, 200])
def test_the_sum_of_all_ranks_is_exact(world, dtype):
    for change in (1, 2, 5):
        total = torch.zeros(9001, dtype=torch.float64)
        parts = torch.empty(9001, dtype=dtype)
        for rank in range(world):
            data.fill(parts, rank, world, change)
            total += parts.double()
        assert total.max() <= 256
        assert data.wrong(total.to(dtype), world, change) is None
        assert data.wrong(total.to(dtype), world, change + 1) is not None, "a kept result would not show"


@pytest.mark.parametrize("place", [0, 1, 4092, 4093, 8999])
def test_one_wrong_element_is_found_where_it_is(place):
    x = torch.empty(9000)
    total = torch.zeros(9000)
    for rank in range(3):
        data.fill(x, rank, 3, 1)
        total += x
    total[place] += 1
    count, first, got, wanted = data.wrong(total, 3, 1)
    assert (count, first, got) == (1, place, wanted + 1)


def test_data_shifted_by_a_chunk_is_found():
    x = torch.empty(1 << 16)
    data.fill(x, 0, 1, 1)
    for shift in (1, 1024, 4096, 1 << 15):
        assert data.wrong(x.roll(shift), 1, 1) is not None


# ---- report ---------------------------------------------------------------------------------------------------------


def measured(*times: float, graph: float | None = None, wrong=()) -> dict:
    return {"times_us": list(times), "graph_us": graph, "graph": "replayed", "wrong": list(wrong)}


def test_a_round_counts_as_its_slowest_rank():
    step = Step(6144, "float16", "in_place", 3, 1)
    row = report.row(step, {0: measured(1, 9, 2), 1: measured(5, 3, 4)}, 2)
    assert (row["p50_us"], row["p99_us"]) == (5, 9)
    assert row["ok"] and row["algorithm_gb_per_s"] == round(6144 / 5 / 1e3, 3)
    bad = report.row(step, {0: measured(1), 1: measured(1, wrong=[{"how": "eager"}])}, 2)
    assert not bad["ok"]


def test_the_projection_of_the_published_latencies():
    rows = [
        {"bytes": 8, "form": "in_place", "p50_us": 16.8, "graph_us": None},
        {"bytes": 6144, "form": "in_place", "p50_us": 14.9, "graph_us": None},
        {"bytes": 6144, "form": "clone", "p50_us": 99.0, "graph_us": None},
    ]
    ahead = report.projection(rows)
    assert ahead["calls"] == 187 and ahead["ms_per_token"] == 2.904  # 125 x 14.9 + 62 x 16.8 us
    assert ahead["tokens_per_s_ceiling"] == pytest.approx(344.3, abs=0.1)
    assert report.projection(rows[1:]) is None


def test_the_json_form_has_what_it_promises():
    result = report.Result(Plan("gloo", "cpu", 2, (), 1.0, ""))
    promised = {"schema", "backend", "library", "world", "rows", "verdict", "stuck"}
    assert promised <= set(result.as_json()) and {"path", "version"} <= set(result.as_json()["library"])
    assert json.loads(json.dumps(result.as_json()))["verdict"] == "ok"


def test_a_picture_is_drawn(tmp_path):
    result = report.Result(Plan("gloo", "cpu", 2, (), 1.0, ""), library={"name": "gloo", "version": "1"})
    for size in (8, 6144, 1 << 20):
        result.rows.append(report.row(Step(size, "float32", "in_place", 1, 1), {0: measured(size / 10 + 5)}, 2))
    plot.draw(result.as_json(), tmp_path / "latency.png")
    assert (tmp_path / "latency.png").read_bytes()[:4] == b"\x89PNG"


# ---- causes, algorithms, faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "backend,phase,log,environ,first",
    [
        ("xccl", "init", ["pidfd is not supported, fallbacks to drmfd exchange mode"], {}, "IPC handles"),
        ("xccl", "warmup", ["zeMemOpenIpcHandle: ZE_RESULT_ERROR_INVALID_ARGUMENT"], {}, "peer access"),
        ("oneccl", "init", ["could not find interface"], {}, "network interface"),
        ("oneccl", "init", ["fi_getinfo: no data"], {}, "libfabric provider"),
        ("xccl", "warmup", [], {}, "CCL_ZE_IPC_EXCHANGE unset"),
        ("xccl", "warmup", [], {"CCL_ZE_IPC_EXCHANGE": "pidfd"}, "peer access that the driver reports"),
        ("xccl", "warmup", ["Intel(R) Arc(TM) Pro B60"], {}, "oneCCL 2022.0 and 2022.1 hang on B60"),
        ("nccl", "init", ["NCCL WARN NVLS multicast bind failed"], {}, "NVLink multicast"),
        ("gloo", "init", ["Address already in use"], {}, "the port of the rendezvous is taken"),
        ("nccl", "init", ["posix_fallocate: /dev/shm/nccl: No space left on device"], {}, "shared memory"),
        ("gloo", "timed", [], {}, "a rank that stands still"),
    ],
)
def test_the_cause_that_shows_in_the_log_comes_first(backend, phase, log, environ, first):
    said = causes.likely(backend, phase, log, environ)
    assert said[0].startswith(first), said
    assert len(said) <= 4


def test_a_cause_without_a_sign_is_not_blamed_on_another_phase():
    said = causes.likely("gloo", "timed", [], {})
    assert not any("port" in s or "/dev/shm" in s for s in said)


def test_telling_lines_are_kept():
    log = ["noise"] * 50 + ["|CCL_ERROR| something", "more noise", "RuntimeError: x"]
    assert causes.telling(log) == ["|CCL_ERROR| something", "RuntimeError: x"]
    assert causes.telling(["only", "noise"]) == ["only", "noise"]


def test_the_algorithm_is_read_from_the_log():
    ccl = ["|CCL_DEBUG| selector_impl.hpp:355 get: selected algo: coll allreduce, count 3072, algo recursive_doubling"]
    assert library.algorithm("oneCCL", ccl) == "allreduce 3072 recursive_doubling"
    nccl = ["host:1:1 [0] NCCL INFO AllReduce: 6144 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"]
    assert library.algorithm("NCCL", nccl) == "AllReduce 6144 RING LL"
    assert library.algorithm("NCCL", []) == "not named in its log"


def test_a_fault_is_spelt_out():
    assert faults.parse("kill@timed:3") == faults.Fault("kill", "timed", 3)
    assert faults.parse("") == faults.Fault()
    for bad in ("kill", "kill@nowhere:1", "burn@init:1", "kill@init:x"):
        with pytest.raises(ValueError, match="wanted KIND@PHASE:RANK"):
            faults.parse(bad)


# ---- what is left on the machine ------------------------------------------------------------------------------------

HOLDER = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR); os.ftruncate(fd, 4096); kept = mmap.mmap(fd, 4096)
if len(sys.argv) > 2: os.close(fd)
print("ready", flush=True); sys.stdin.read()
"""


@pytest.fixture
def shared():
    """A name under /dev/shm that is gone after the test."""
    names: list[Path] = []

    def make(tag: str) -> Path:
        names.append(Path(f"/dev/shm/xpu_moe-test-{tag}-p{os.getpid()}x"))
        return names[-1]

    yield make
    for path in names:
        path.unlink(missing_ok=True)


def holder(path: Path, *flags: str) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("flags", [(), ("mapped only",)])
def test_a_file_of_a_rank_is_removed_and_a_stranger_survives(private_cache, shared, flags):
    old, mine, foreign = shared("old"), shared("mine"), shared("foreign")
    old.write_bytes(b"old")
    prints = Footprint()
    rank, stranger = holder(mine, *flags), holder(foreign)
    opens_old = holder(old)
    try:
        prints.observe([rank.pid, opens_old.pid])
        assert prints.remove() == [mine.name]
        assert not mine.exists() and foreign.exists() and old.exists()
        assert not prints.folder.exists()
        assert stranger.poll() is None
    finally:
        for process in (rank, stranger, opens_old):
            process.communicate()


def test_a_file_named_after_a_rank_is_removed_unless_somebody_holds_it(private_cache, shared):
    prints = Footprint()
    rank = subprocess.Popen(["sleep", "60"])
    try:
        free, held = shared(f"free-{rank.pid}"), shared(f"held-{rank.pid}")
        free.write_bytes(b"made and closed")
        stranger = holder(held)
        prints.observe([rank.pid])
        assert prints.remove() == [free.name]
        assert held.exists() and not free.exists()
        stranger.communicate()
    finally:
        rank.kill()
        rank.wait()


def test_a_name_that_was_taken_by_another_file_survives(private_cache, shared):
    path = shared("reused")
    prints = Footprint()
    rank = holder(path)
    prints.observe([rank.pid])
    keep = path.with_name(path.name + "2")
    path.rename(keep)  # the inode stays in use, so that the new file has another
    path.write_bytes(b"not ours")
    rank.communicate()
    assert prints.remove() == []
    assert path.exists()
    keep.unlink()


def test_the_next_run_sweeps_what_a_killed_run_left(private_cache, shared, tmp_path, monkeypatch):
    path = shared("killed")
    code = (
        "import subprocess, sys; from xpu_moe.probe._watch.footprint import Footprint\n"
        f"p = Footprint(); c = subprocess.Popen([sys.executable, '-c', '''{HOLDER}''', {str(path)!r}],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE); c.stdout.readline(); p.observe([c.pid]); print(p.folder)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    folder = Path(done.stdout.strip())
    assert folder.is_dir() and path.exists(), done.stderr
    running = Footprint()  # one that still runs is left alone
    assert sorted(footprint.sweep()) == sorted([path.name, str(folder)])
    assert not path.exists() and not folder.exists() and running.folder.is_dir()
    running.remove()
    assert footprint.sweep() == []


def test_shared_memory_trouble_is_named(monkeypatch, tmp_path):
    assert footprint.shared_memory_trouble() == ""
    assert "is full" in footprint.shared_memory_trouble(1 << 60)
    monkeypatch.setattr(footprint, "SHM", tmp_path / "none")
    assert "cannot be written" in footprint.shared_memory_trouble()


# ---- before a run ---------------------------------------------------------------------------------------------------


def test_more_ranks_than_memory_are_refused():
    run.check_memory(4, 128 << 20, available=8 << 30)
    with pytest.raises(ValueError, match="got 65, .* take fewer ranks or --max-bytes"):
        run.check_memory(65, 128 << 20, available=24 << 30)
    run.check_memory(65, 128 << 20, available=0)  # a kernel that does not say


def test_an_interrupt_before_a_subcommand_listens_ends_with_130(monkeypatch, capsys):
    from xpu_moe import subcommands

    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subcommands, "found", lambda room: {"allreduce": "help"})
    monkeypatch.setattr(subcommands.importlib, "import_module", interrupted)
    assert subcommands.run("xpu_moe.probe", ["allreduce"]) == 130
    assert capsys.readouterr().err == "xpu_moe.probe: interrupted\n"


# ---- who starts the ranks, and what is refused before any is started ------------------------------------------------

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "LOCAL_RANK": "1"}


def test_all_of_torchruns_variables_join_and_none_start_ranks_here():
    assert run.joined(TORCHRUN) == run.Joined(1, 1, 2)
    assert run.joined({}) is None
    assert run.joined({"MASTER_ADDR": "host", "MASTER_PORT": "1"}) is None, "a host's settings are no rank"
    assert run.joined({"RANK": "", "WORLD_SIZE": ""}) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"MASTER_ADDR": ""},
            "MASTER_ADDR: not set, beside RANK=1, WORLD_SIZE=2, MASTER_PORT=29500; wanted all of RANK",
        ),
        ({"MASTER_ADDR": "", "MASTER_PORT": ""}, "or to start ranks here: unset RANK WORLD_SIZE"),
        ({"RANK": ""}, "RANK: not set, beside WORLD_SIZE=2"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE: not set, beside RANK=1"),
        ({"RANK": "2"}, "RANK=2, LOCAL_RANK=1: wanted ranks from 0 to below WORLD_SIZE=2"),
        ({"RANK": "-1"}, "RANK=-1, LOCAL_RANK=1: wanted ranks from 0"),
        ({"RANK": "x"}, "RANK='x': wanted a whole number"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT: got 70000, wanted a whole number from 1 to 65535"),
    ],
)
def test_half_of_torchruns_variables_is_said_and_nothing_is_started(changes, says, capsys, monkeypatch):
    with pytest.raises(ValueError) as refused:
        run.joined({**TORCHRUN, **changes})
    assert says in str(refused.value)
    monkeypatch.setattr(run, "run", lambda *given: pytest.fail("ranks were started"))
    for name, value in {**TORCHRUN, **changes}.items():
        monkeypatch.setenv(name, value)
    assert allreduce.main(["--device", "cpu", "--json"]) == 2
    assert says in json.loads(capsys.readouterr().out)["cannot"]


@pytest.mark.parametrize("port", ["70000", "65536", "-1"])
def test_a_port_that_cannot_be_is_refused_before_ranks_start(port, capsys, monkeypatch):
    monkeypatch.setattr(run, "run", lambda *given: pytest.fail("ranks were started"))
    assert allreduce.main(["--device", "cpu", "--world", "2", "--port", port]) == 2
    assert f"allreduce: --port: got {port}, wanted a whole number from 0 to 65535" in capsys.readouterr().err


def test_a_port_beside_torchrun_is_refused(capsys, monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert allreduce.main(["--device", "cpu", "--port", "29501"]) == 2
    assert "--port: got 29501; torchrun's ranks meet at MASTER_PORT" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["/dev/null", "/proc/x"])
def test_a_cache_folder_that_cannot_be_used_is_no_dead_rank(place, capsys, monkeypatch):
    """oneCCL's ranks are built in it: told before anything is started, and with another code than a rank that died."""
    monkeypatch.setenv("XPU_MOE_CACHE", place)
    monkeypatch.setattr(run, "run", lambda *given: pytest.fail("ranks were started"))
    monkeypatch.setattr(run, "chosen", lambda *given: pytest.fail("devices were looked for"))
    assert allreduce.main(["--backend", "oneccl", "--world", "2", "--sizes", "1024", "--json"]) == 2
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["ok"] is False and answer["cannot"].startswith(f"cache folder {place}: ")
    assert said.err == f"allreduce: {answer['cannot']}\n"


def test_the_help_tells_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        allreduce.main(["--help"])
    assert "no cache folder for --backend oneccl" in " ".join(capsys.readouterr().out.split())
