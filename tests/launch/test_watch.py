"""The watch: phases in order, stalls by phase and limit, complaints are no progress."""

from __future__ import annotations

from xpu_moe.launch.watch import SERVING, Watch

LOAD = "INFO [cpu_model_runner.py:68] Starting to load model /m..."
SHM = "INFO [shm_broadcast.py] No available shared memory broadcast block found in 60 seconds."


def test_phases_only_go_forward():
    watch = Watch(0)
    assert watch.feed(LOAD, 5)[0] == "load"
    assert watch.feed("INFO Resolved architecture: MiniMaxM2ForCausalLM", 6)[0] is None
    assert watch.phase == "load"
    assert watch.timings(9) == [{"phase": "python", "seconds": 5}, {"phase": "load", "seconds": 4}]


def test_progress_moves_the_limit_and_repeated_lines_do_not():
    watch = Watch(0, limit=10)
    watch.feed(LOAD, 0)
    watch.feed("Loading safetensors checkpoint shards:  10% Completed | 3/30", 9)
    assert watch.stalled(18) is None
    for second in range(10, 20):
        watch.feed("Loading safetensors checkpoint shards:  10% Completed | 3/30", second)
    stall = watch.stalled(20)
    assert stall and stall.phase == "load" and "loading weights" in stall.text()


def test_complaints_of_waiting_workers_end_a_start():
    watch = Watch(0)
    watch.feed(LOAD, 0)
    for minute in (1, 2, 3):
        assert watch.stalled(minute * 60) is None
        watch.feed(SHM, minute * 60)
    assert "3 times" in watch.stalled(181).text()


def test_complaints_count_in_a_row_only_and_not_while_a_graph_compiles():
    watch = Watch(0)
    watch.feed(LOAD, 0)
    watch.feed(SHM, 60)
    watch.feed(SHM, 120)
    watch.feed("Loading safetensors checkpoint shards:  10% Completed | 3/30", 130)  # a sign of life
    watch.feed(SHM, 180)
    assert watch.stalled(181) is None
    watch.feed("INFO Compiling a graph for general shape", 200)
    assert watch.phase == "compile"
    for minute in range(4, 16):
        watch.feed(SHM, 60 * minute)
        assert watch.stalled(60 * minute) is None
    assert "no progress, the limit is 900 s" in watch.stalled(1101).text()


def test_a_server_that_serves_never_stalls():
    watch = Watch(0, limit=1)
    watch.enter(SERVING, 1)
    for minute in range(5):
        watch.feed(SHM, minute)
    assert watch.stalled(10**6) is None


def test_a_machine_without_shared_memory(tmp_path):
    from xpu_moe.launch.shm import Ledger

    ledger = Ledger(tmp_path / "missing")
    ledger.record([1, 10**9])
    assert ledger.remove() == []


def test_a_file_that_was_replaced_is_somebody_elses(tmp_path):
    import mmap
    import os

    from xpu_moe.launch.shm import Ledger

    ledger = Ledger(tmp_path)
    for name in ("ours", "replaced"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    with open(tmp_path / "ours", "r+b") as one, open(tmp_path / "replaced", "r+b") as two:
        maps = [mmap.mmap(file.fileno(), 4096) for file in (one, two)]
        ledger.record([os.getpid()])
        (tmp_path / "other").write_bytes(b"y")
        os.replace(tmp_path / "other", tmp_path / "replaced")
        assert ledger.remove() == ["ours"]
        assert (tmp_path / "replaced").exists() and len(maps) == 2


def test_a_longer_limit_allows_more_complaints_of_the_queue():
    """The line comes once a minute while a first compilation keeps the workers busy."""
    usual, patient = Watch(0), Watch(0, limit=1800)
    for minute in range(1, 4):
        usual.feed(SHM, 60 * minute)
        patient.feed(SHM, 60 * minute)
    assert "XPU_MOE_STALL_LIMIT" in usual.stalled(181).text() and patient.stalled(181) is None
    for minute in range(4, 31):
        patient.feed(SHM, 60 * minute)
    assert "30 times" in patient.stalled(1799).text()
