"""What workers write is what a launcher reads, whatever else lies in the folder."""

from __future__ import annotations

import json

import pytest

from xpu_moe.serving import report
from xpu_moe.serving.report import Layer, Worker


def moe(**changes) -> Layer:
    fields = {"kind": "moe_int4", "case": "E8", "backend": "fast", "reason": "it fits", "prefill_backend": "bulk"}
    return Layer(**{**fields, **changes})


def worker(rank: int, *layers: Layer) -> Worker:
    made = Worker(rank=rank, world_size=2, pid=100 + rank, fingerprint="abc")
    for layer in layers:
        made.add(layer)
    return made


def test_two_ranks_make_one_summary(tmp_path):
    for rank in (1, 0):
        worker(rank, moe(), moe(), Layer("linear_int4", "N8", "dequantized", "AMX")).write(tmp_path)
    told = report.summary(tmp_path)
    assert (told["backend"], told["reason"], told["prefill_backend"]) == ("fast", "it fits", "bulk")
    assert (told["workers"], told["world_size"], told["fingerprint"]) == (2, 2, "abc")
    assert [(layer["kind"], layer["count"]) for layer in told["layers"]] == [("moe_int4", 2), ("linear_int4", 1)]


def test_ranks_that_differ_are_both_named(tmp_path):
    worker(0, moe()).write(tmp_path)
    worker(1, moe(backend="slow", reason="another card")).write(tmp_path)
    told = report.summary(tmp_path)
    assert (told["backend"], told["reason"]) == ("fast+slow", "it fits; another card")


def test_a_plugin_that_stepped_back_is_stock_with_its_reason(tmp_path):
    Worker(pid=7, notes=["vLLM 9.9 is untested"]).write(tmp_path)
    told = report.summary(tmp_path)
    assert (told["backend"], told["reason"]) == (report.STOCK, "vLLM 9.9 is untested")


@pytest.mark.parametrize("prepare", ["missing", "empty", "strange"])
def test_no_report_is_no_error(tmp_path, prepare):
    folder = tmp_path / "told"
    if prepare != "missing":
        folder.mkdir()
    if prepare == "strange":
        for name, text in (("a.json", "{"), ("b.json", "[1]"), ("c.json", '{"layers": [{"x": 1}]}'), ("d.json", "{}")):
            (folder / name).write_text(text)
    told = report.summary(folder)
    assert told["backend"] == "" and str(folder) in told["reason"]


def test_only_the_first_of_a_kind_is_new():
    made = Worker()
    assert made.add(moe()) and not made.add(moe()) and made.add(moe(case="E9"))


def test_a_note_gives_way_to_the_workers_file(tmp_path):
    made = Worker(pid=5, notes=["hook set"])
    made.write(tmp_path)
    made.add(moe())
    made.write(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["worker-0-5.json"]
    assert json.loads((tmp_path / "worker-0-5.json").read_text())["schema"] == report.SCHEMA


def test_the_log_line_holds_what_a_reader_asks_for():
    line = moe(
        layout="n_major", nibble="u4", decode_limit=64, bytes_loaded=10, bytes_kept=9, refused=[["x", "no"]]
    ).line()
    for part in ("fast: it fits", "M > 64: bulk", "layout n_major u4", "10 -> 9 bytes", "not x: no"):
        assert part in line
