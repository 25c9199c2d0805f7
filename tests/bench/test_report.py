"""The bench frame: medians, floors, tables, JSON and the subcommand on a CPU."""

from __future__ import annotations

import json

import pytest

from xpu_moe import device, streams
from xpu_moe.bench import kernels, report, suite, timing
from xpu_moe.bench.ceilings import Ceiling


def _row(**changes):
    wanted = {"moved": 8.6e6, "floor_us": 2.0, "rivals": {"pair": 8.0, "other": "not installed"}, "errors": {"ids": 0}}
    return report.Row("s", "op", "M 1", timing.Timing.of([4.0, 3.0, 5.0], 10, "test"), **{**wanted, **changes})


def test_timing_is_the_median_and_keeps_the_spread():
    found = timing.Timing.of([9.0, 1.0, 2.0, 3.0, 4.0], 7, "test")
    assert (found.us, found.low, found.high, found.rounds, found.calls) == (3.0, 1.0, 9.0, 5, 7)


def test_row_derives_rate_floor_and_rivals():
    row = _row()
    assert row.tb_per_s == pytest.approx(8.6e6 / 4.0 / 1e6)
    assert row.times_floor == 2.0
    assert row.times_faster() == {"pair": 2.0}


def test_a_missing_rival_is_a_sentence_never_a_number():
    text = report.table([_row()])
    assert "other not installed" in text and "pair 8.00" in text


def test_json_holds_derived_figures():
    found = json.loads(json.dumps(report.document([_row()], {"command": "x"})))
    assert found["schema"] == report.SCHEMA and found["rows"][0]["times_floor"] == 2.0


def test_cold_sets_outrun_the_cache():
    assert timing.sets_for_cold_cache(10 << 20, 60 << 20) * (10 << 20) >= 2.5 * (60 << 20)
    assert timing.sets_for_cold_cache(1, 60 << 20) == 64
    assert timing.sets_for_cold_cache(1 << 40, 60 << 20) == 2


def test_eager_goes_round_all_input_sets():
    seen = []
    found = timing.eager("cpu", [lambda: seen.append(0), lambda: seen.append(1)], rounds=3, repeats=5)
    assert seen.count(0) == seen.count(1) == 1 + 3 * 5
    assert found.calls == 10


class Clock:
    """A clock that work moves, and nothing else."""

    def __init__(self, monkeypatch, step: float):
        self.now, self.done, self.step = 100.0, [], step
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(timing, "WARM_S", 1.0)

    def batch(self) -> None:
        self.now += self.step
        self.done.append("batch")

    def wait(self) -> None:
        self.done.append("wait")


@pytest.mark.parametrize("step, batches", ((0.25, 4), (0.3, 4), (9.0, 2)))
def test_a_device_is_kept_busy_for_a_while_and_at_least_twice(monkeypatch, step, batches):
    clock = Clock(monkeypatch, step)
    timing._warm(clock.batch, clock.wait)
    assert clock.done == ["batch", "wait"] * batches


@pytest.mark.parametrize("kind", ("cpu", "xpu"))
def test_a_device_is_warmed_before_the_first_sample_and_a_cpu_is_not(monkeypatch, kind):
    clock = Clock(monkeypatch, 1.0)
    monkeypatch.setattr(timing, "synchronize", lambda kind: clock.wait())
    found = timing.measure(kind, [clock.batch, clock.batch], rounds=3, repeats=5)
    assert clock.done.count("batch") == 2 + 3 * 10 + (0 if kind == "cpu" else 4)
    assert found.us == pytest.approx(1e6) and found.calls == 10


def test_floor_needs_a_known_bandwidth():
    assert Ceiling(4.3e12, "test").floor_us(4.3e6) == pytest.approx(1.0)
    assert Ceiling(0.0, "unknown card").floor_us(4.3e6) == 0.0


def test_suites_are_found_by_file():
    assert {"route_quant", "route_quant_pair"} <= set(suite.names())
    with pytest.raises(ValueError, match="wanted one of"):
        suite.load("nothing")


def test_kernels_on_the_cpu_prints_one_json_object(capsys, tmp_path):
    picture = tmp_path / "rows.png"
    code = kernels.main(
        [
            "--device",
            "cpu",
            "--suite",
            "route_quant",
            "--rounds",
            "2",
            "--tokens",
            "1,4",
            "--json",
            "--plot",
            str(picture),
        ]
    )
    out = capsys.readouterr().out
    found = json.loads(out)
    assert code == 0 and found["failed"] == {} and picture.stat().st_size > 0
    assert {row["backend"] for row in found["rows"]} == {"cpu_pair"}
    assert all(row["errors"]["ids"] == 0 and row["errors"]["codes"] == 0 for row in found["rows"])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--tokens", "1,two", "got '1,two', wanted whole numbers from 1 to 131072, comma separated"),
        ("--tokens", "0", "got '0', wanted whole numbers from 1"),
        ("--tokens", "", "got '', wanted whole numbers from 1"),
        ("--tokens", "²", "got '²', wanted whole numbers from 1"),
        ("--tokens", "99999999999999999999", "got '99999999999999999999', wanted whole numbers from 1"),
        ("--rounds", "0", "got 0, wanted a whole number from 1 to 10000"),
        ("--rounds", "99999999999999999999", "got 99999999999999999999, wanted a whole number from 1 to 10000"),
        ("--seed", "99999999999999999999", "got 99999999999999999999, wanted a whole number from 0 to"),
        ("--seed", "-1", "got -1, wanted a whole number from 0 to"),
        ("--plot", "/dev/null", "wanted a .png file"),
    ],
)
def test_a_bad_argument_is_named_before_anything_is_measured(option, value, message, capsys, monkeypatch):
    monkeypatch.setattr(suite, "rows_of", lambda *given: pytest.fail("a suite was started"))
    assert kernels.main(["--device", "cpu", "--json", option, value]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"bench: {option}: {message}" if option != "--plot" else "bench: --plot: ")
    assert message in printed.err
    assert json.loads(printed.out) == {"ok": False, "cannot": printed.err.removeprefix("bench: ").strip()}


def test_no_device_is_said_in_json_as_well(capsys, monkeypatch):
    monkeypatch.setattr(device, "devices", lambda kind: ())
    assert kernels.main(["--device", "cuda", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["cannot"].startswith("--device cuda: none here (")


def test_a_suite_named_twice_is_measured_once(monkeypatch):
    asked = []
    monkeypatch.setattr(suite, "rows_of", lambda name, setting: asked.append(name) or [_row()])
    assert kernels.main(["--device", "cpu", "--suite", "moe", "--suite", "route_quant", "--suite", "moe"]) == 0
    assert asked == ["moe", "route_quant"]


def test_a_picture_that_fails_all_the_same_is_one_line(tmp_path, capsys):
    assert report.plot([_row()], tmp_path / "gone" / "a.png", "t") == 74
    assert capsys.readouterr().err.endswith("a.png' could not be written: No such file or directory\n")


def test_an_answer_that_nobody_took_has_its_own_code(monkeypatch):
    monkeypatch.setattr(suite, "rows_of", lambda name, setting: [_row()])
    monkeypatch.setattr(streams, "emit", lambda tool, text: streams.LOST)
    assert kernels.main(["--device", "cpu", "--suite", "moe", "--json"]) == 74
