"""`bench collectives` on CPU ranks: right rows, one JSON object, and an end to ranks that hang or fail."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
import torch

from xpu_moe.bench import _collective_cases as cases
from xpu_moe.bench import _rank, collectives
from xpu_moe.bench.timing import Timing


def test_fingerprints_notice_a_swap_and_a_flipped_sign_of_zero():
    values = torch.tensor([1.0, 2.0, 0.0])
    prints = {
        cases.fingerprint([values]),
        cases.fingerprint([values[[1, 0, 2]]]),
        cases.fingerprint([torch.tensor([1.0, 2.0, -0.0])]),
    }
    assert len(prints) == 3 and cases.fingerprint([values.clone()]) in prints


def test_inputs_differ_by_rank_and_turn_and_sum_exactly():
    made = [cases.integers(64, rank, turn, torch.bfloat16, torch.device("cpu")) for rank in (0, 1) for turn in (0, 1)]
    assert len({tuple(m.tolist()) for m in made}) == 4
    assert all(float(m.abs().max()) <= 8 and torch.equal(m, m.round()) for m in made)


def test_ranks_run_without_multicast_and_let_nccl_keep_its_graphs_plain():
    made = collectives.rank_environment({"NCCL_NVLS_ENABLE": "1", "HOME": "/h"})
    assert made["NCCL_NVLS_ENABLE"] == "0" and made["HOME"] == "/h" and made["NCCL_GRAPH_MIXING_SUPPORT"] == "0"
    assert collectives.rank_environment({"NCCL_GRAPH_MIXING_SUPPORT": "1"})["NCCL_GRAPH_MIXING_SUPPORT"] == "1"


def _bench(monkeypatch, us):
    """A rank on a cuda device that takes `us[calls]` a call in a graph of so many calls."""
    bench = object.__new__(_rank.Bench)
    bench.kind = "cuda"
    monkeypatch.setattr(bench, "graph", lambda call, size, count: Timing.of([us[count]], count, "told"), raising=False)
    return bench


@pytest.mark.parametrize(
    ("size", "us", "best"),
    ((6144, {100: 14.0, 20: 9.0}, 9.0), (6144, {100: 7.0, 20: 9.0}, 7.0), (16 << 20, {12: 97.0}, 97.0)),
)
def test_a_rival_is_taken_at_its_best_graph(monkeypatch, size, us, best):
    assert _bench(monkeypatch, us).rival(lambda: None, size) == best


def test_values_that_are_timed_do_not_grow_out_of_range():
    bench = SimpleNamespace(dtype=torch.bfloat16, device=torch.device("cpu"), job={"dtype": "bfloat16"},
                            who=SimpleNamespace(rank=0))  # fmt: skip
    case = cases.AllReduce(bench, 64, "no pool")
    case.fill_random()
    assert case.x.any()
    case.settle()
    assert not case.x.any()


def test_more_ranks_than_devices_is_refused(capsys):
    assert collectives.main(["--device", "cpu", "--world", "1"]) == 2
    assert "--world 1: wanted 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [("--sizes", "x"), ("--tokens", "0"), ("--rounds", "0"), ("--timeout", "nan"), ("--plot", "/no/such/a.png")],
)
def test_bad_arguments_start_no_rank(wrong, capsys):
    assert collectives.main(["--device", "cpu", *wrong]) == 2
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.slow
def test_what_was_measured_before_a_failure_is_one_json_object(capsys):
    code = collectives.main(["--device", "cpu", "--rounds", "500", "--sizes", "67108864", "--timeout", "5", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 3 and found["failed"] == "the time limit passed" and found["rows"] == []


@pytest.mark.slow
def test_two_cpu_ranks_print_one_json_object_with_exact_rows(capsys):
    code = collectives.main(
        ["--device", "cpu", "--world", "2", "--rounds", "2", "--tokens", "2", "--sizes", "8,6150", "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 0 and found["world"] == 2 and found["library"] == "gloo"
    assert [row["name"] for row in found["rows"]] == ["all_reduce"] * 2 + ["allreduce_qk_rms", "all_reduce_add_rms"]
    assert all(row["errors"]["wrong"] == 0 and row["errors"]["bits"] == 0 for row in found["rows"])
    assert {row["backend"] for row in found["rows"]} == {"process_group", "composed"}
    assert [row["extra"].get("unfused_halves") for row in found["rows"]] == [None, None, "cpu_rms, cpu_rms", None]


@pytest.mark.slow
def test_ranks_that_do_not_end_are_stopped_at_the_limit(capsys):
    job = {
        "kind": "cpu",
        "world": 2,
        "sizes": [1 << 26],
        "tokens": [1],
        "dtype": "float32",
        "rounds": 500,
        "replays": 0,
    }
    started = time.monotonic()
    _, _, code = collectives.run_ranks(job, 5.0)
    assert code == 3 and time.monotonic() - started < 15
    assert "did not end within 5 s" in capsys.readouterr().err


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_others(capsys):
    job = {
        "kind": "cpu",
        "world": 2,
        "sizes": [8],
        "tokens": [1],
        "dtype": "no_such_dtype",
        "rounds": 1,
        "replays": 0,
        "sweep": False,
    }
    _, _, code = collectives.run_ranks(job, 60.0)
    assert code == 1 and "ranks ended with" in capsys.readouterr().err
