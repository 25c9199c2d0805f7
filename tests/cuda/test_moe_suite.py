"""The MoE benchmark suite runs on a CPU, checks what it times and says who is not installed."""

from __future__ import annotations

import json

import pytest

from xpu_moe.bench import kernels
from xpu_moe.serving import moe_rivals


@pytest.mark.slow
def test_the_suite_prints_checked_rows(capsys):
    arguments = ["--suite", "moe", "--device", "cpu", "--quick", "--tokens", "2", "--rounds", "1", "--json"]
    assert kernels.main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == ["moe_u4", "moe_fp8_block"]
    for row in rows:
        assert row["errors"]["rel"] < 1e-2 and row["timing"]["us"] > 0
        assert row["moved"] > row["extra"]["distinct_experts"] * 1000
    assert rows[0]["extra"]["layer_bytes_before"] == rows[0]["extra"]["layer_bytes_after"] > 0


def test_a_rival_that_is_not_here_is_a_sentence(monkeypatch):
    monkeypatch.setattr(moe_rivals.importlib.util, "find_spec", lambda name: None)
    assert moe_rivals.marlin_int4(8, 256, 128, 128, 1) == "not installed"
    assert moe_rivals.triton_fp8_block([], 8) == "not installed"
