"""The MoE benchmark suite runs on a CPU, checks what it times and says who is not installed."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from xpu_moe.bench import kernels
from xpu_moe.bench.suites import moe
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


@pytest.fixture
def fp8(monkeypatch):
    """The FP8 rows of a card, on host tensors."""
    family = moe.Fp8.__new__(moe.Fp8)
    family.setting = SimpleNamespace(kind="cpu", rounds=1)
    family.shape = moe.Shape(256, 128, 8, 2)
    family.layers = [tuple(torch.zeros(1) for _ in range(4)) for _ in range(2)]
    monkeypatch.setattr(moe.device, "architecture", lambda kind: "sm_90")
    return family


def test_flashinfer_is_a_rival_where_it_is_installed(fp8, monkeypatch):
    given = [moe.routes(fp8.shape, 2, "cpu", seed) for seed in range(4)]
    xs = [torch.zeros(2, 256, dtype=torch.bfloat16) for _ in range(4)]
    out, seen = torch.zeros(2, 256, dtype=torch.bfloat16), []

    def run(x, x_scale, w13, *rest, activation, layout, out):
        assert x_scale is None and (activation, layout) == ("silu", "up_gate")
        seen.append(w13.data_ptr())

    monkeypatch.setattr(moe, "select", lambda case, name: SimpleNamespace(backend=SimpleNamespace(run=run)))
    assert fp8.flashinfer(2, xs, given, out) >= 0
    assert set(seen) == {layer[0].data_ptr() for layer in fp8.layers}

    def broken(*arguments, **settings):
        raise RuntimeError("ninja is missing\nand more")

    monkeypatch.setattr(moe, "select", lambda case, name: SimpleNamespace(backend=SimpleNamespace(run=broken)))
    assert fp8.flashinfer(2, xs, given, out) == "not run: ninja is missing"


def test_flashinfer_that_is_not_here_is_a_sentence(fp8, monkeypatch):
    from xpu_moe.cuda import flashinfer

    monkeypatch.setattr(flashinfer, "installed", lambda: "")
    monkeypatch.setattr(fp8.setting, "kind", "cuda")
    moe.select.cache_clear()
    assert fp8.flashinfer(2, [], [], torch.zeros(1)) == "not installed"
