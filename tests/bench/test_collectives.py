"""`bench collectives` on CPU ranks: right rows, one JSON object, and an end to ranks that hang or fail."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
import torch

from xpu_moe import device, host_memory, streams
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
    assert "--world: got 1, wanted 2 to 64 (cpu)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ("--sizes", "x", "got 'x', wanted whole numbers from 1"),
        ("--sizes", "²", "got '²', wanted whole numbers from 1"),
        ("--sizes", "", "got '', wanted whole numbers from 1"),
        ("--sizes", "99999999999999999999", "wanted whole numbers from 1 to 17179869184"),
        ("--sizes", "8,7", "got 7 bytes, wanted a multiple of 2, which --dtype bfloat16 takes"),
        ("--tokens", "0", "got '0', wanted whole numbers from 1 to 131072"),
        ("--tokens", "", "got '', wanted whole numbers"),
        ("--rounds", "0", "got 0, wanted a whole number from 1 to 10000"),
        ("--rounds", "99999999999999999999", "got 99999999999999999999, wanted a whole number from 1 to 10000"),
        ("--timeout", "nan", "got nan, wanted seconds"),
        ("--timeout", "1e300", "got 1e+300, wanted seconds"),
        ("--replays", "-1", "got -1, wanted a whole number from 0"),
        ("--replays", "1", "cpu has no all-reduce kernels of ours; wanted --device cuda"),
        ("--world", "1000000", "got 1000000, wanted 2 to 64 (cpu)"),
        ("--plot", "/no/such/a.png", "wanted a .png file"),
    ],
)
def test_bad_arguments_start_no_rank(wrong, capsys, monkeypatch):
    monkeypatch.setattr(collectives, "run_ranks", lambda *given: pytest.fail("ranks were started"))
    option, value, message = wrong
    assert collectives.main(["--device", "cpu", "--json", option, value]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"bench: {option}: ") and message in printed.err
    assert json.loads(printed.out) == {"ok": False, "cannot": printed.err.removeprefix("bench: ").strip()}


def test_a_sweep_needs_kernels_of_ours(capsys):
    assert collectives.main(["--device", "cpu", "--sweep"]) == 2
    assert "--sweep: cpu has no all-reduce kernels of ours" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cards", "says"),
    [(0, "--device cuda: none here (cuda: no driver)"), (1, "--device cuda: got 1 device, wanted 2 or more")],
)
def test_too_few_cards_are_said_with_the_reason(cards, says, capsys, monkeypatch):
    monkeypatch.setattr(device, "devices", lambda kind: ("a card",) * cards)
    monkeypatch.setattr(device, "inventory", lambda: SimpleNamespace(unseen=("cuda: no driver",)))
    assert collectives.main(["--device", "cuda"]) == 2
    assert says in capsys.readouterr().err


def test_sizes_beyond_the_free_memory_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(host_memory, "free_memory", lambda: 10**9)
    for option, value, size in (("--sizes", "536870912", 536870912), ("--tokens", "87381", 536868864)):
        assert collectives.main(["--device", "cpu", option, value]) == 2
        said = f"--sizes, --tokens: got messages of {size} bytes, for which 2 ranks need 28.4 GB of the 1.0 GB"
        assert said in capsys.readouterr().err


def _ended(monkeypatch, rows, about, code):
    monkeypatch.setattr(collectives, "run_ranks", lambda job, timeout_s: (rows, about, code))


def test_a_run_that_ended_before_it_began_says_so(capsys, monkeypatch):
    _ended(monkeypatch, [], {}, 3)
    assert collectives.main(["--device", "cpu"]) == 3
    out = capsys.readouterr().out
    assert out == "no rank came as far as to name its device\nfailed: the time limit passed\n"


def test_a_run_without_rows_is_no_success(capsys, monkeypatch):
    about = {"world": 2, "device": "a card", "torch": "2", "library": "l", "peer_memory": "no peer access"}
    _ended(monkeypatch, [], about, 0)
    assert collectives.main(["--device", "cpu", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["failed"] == "nothing was measured"


def test_an_answer_that_nobody_took_has_its_own_code(monkeypatch):
    _ended(monkeypatch, [], {}, 1)
    monkeypatch.setattr(streams, "emit", lambda tool, text: streams.CLOSED)
    assert collectives.main(["--device", "cpu"]) == 141


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
