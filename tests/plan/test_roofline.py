"""The ceiling of a decode step, and the floors of the MoE weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plan.shapes_of_models import MINIMAX_FP8, MINIMAX_INT4, QWEN3_8B
from xpu_moe.plan.cards import BY_KEY
from xpu_moe.plan.roofline import all_reduces, distinct_experts, roofline
from xpu_moe.plan.shapes import shapes_of

FLOORS = json.loads((Path(__file__).parent / "data" / "moe_floors.json").read_text())
M2 = shapes_of(MINIMAX_INT4)
B70 = BY_KEY["b70"]


def test_one_token_on_four_b70():
    """Computed by hand for 581 GB/s: 3.2 ms of bytes, 187 x 15 us, about 6.0 ms = 166 tok/s."""
    line = roofline(M2, B70, 4)
    sizes = {item.name: item.bytes for item in line.items}
    assert sizes["experts"] == pytest.approx(905e6, rel=0.001)
    assert sizes["attention projections"] == pytest.approx(352e6, rel=0.001)
    assert sizes["lm_head"] == pytest.approx(307e6, rel=0.002)
    assert sizes["router"] == pytest.approx(195e6, rel=0.001)
    assert sizes["KV cache"] == 2048 * 63488
    assert line.memory_ms == pytest.approx(3.2, abs=0.1)
    assert line.collectives == 187 and line.collective_ms == pytest.approx(2.8, abs=0.02)
    assert line.tok_per_s == pytest.approx(166, rel=0.01)


def test_best_published_result_is_below_the_ceiling():
    assert roofline(M2, B70, 4).tok_per_s > 89.31


@pytest.mark.parametrize("row", FLOORS["rows"], ids=lambda r: f"{r['format']}-tp{r['tp']}-M{r['M']}")
def test_moe_floors(row):
    shapes = shapes_of(MINIMAX_INT4 if row["format"].startswith("int4") else MINIMAX_FP8)
    slack = FLOORS["tolerance_rel"]
    experts = distinct_experts(row["E"], row["K"], row["M"])
    assert experts == pytest.approx(row["distinct_experts"], rel=slack)
    assert shapes.expert_bytes(row["tp"]) == row["bytes_per_expert"]
    count = experts * shapes.expert_bytes(row["tp"])
    assert count / 1e6 == pytest.approx(row["weight_mb"], rel=slack)
    assert count / 4.42e12 * 1e6 == pytest.approx(row["floor_us_at_4_42_tb_per_s"], rel=slack)


def test_census_of_collectives():
    assert all_reduces(M2, 4) == 187 and all_reduces(M2, 1) == 0
    assert all_reduces(shapes_of(QWEN3_8B), 2) == 1 + 36 * 2


def test_the_probes_latency_is_taken():
    probe = {"rows": [{"bytes": 8, "p50_us": 99.0, "ok": True}, {"bytes": 6144, "p50_us": 20.0,
    "graph_us": 10.0, "ok": True},
                      {"bytes": 6144, "p50_us": 1.0, "ok": False}]}  # fmt: skip
    line = roofline(M2, B70, 4, probe=probe)
    assert (line.collective_us, line.latency_source) == (10.0, "probe")


@pytest.mark.parametrize("probe", [{}, {"rows": []}, {"rows": "x"}, {"rows": [{"bytes": "8", "p50_us": 1}]}])
def test_a_probe_without_rows_is_an_error(probe):
    with pytest.raises(ValueError, match="wanted"):
        roofline(M2, B70, 4, probe=probe)


def test_traffic_scales_with_distinct_experts_not_with_tokens():
    one, sixteen = roofline(M2, B70, 4, tokens=1), roofline(M2, B70, 4, tokens=16)
    assert sixteen.items[0].bytes / one.items[0].bytes == pytest.approx(102 / 8, rel=0.01)
