"""The MoE benchmark suite runs on a CPU, checks what it times and says who is not installed."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch

from xpu_moe.bench import kernels, suite
from xpu_moe.bench.rivals import Calls, Rival, relative
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


@pytest.fixture
def card(monkeypatch):
    """A suite's rows as they come on a card, on host tensors: what only a card has stands still."""
    setting = suite.Setting("cpu", None, True, 1)
    shape = moe.Shape(256, 128, 8, 2)
    monkeypatch.setattr(moe.Family, "triton", lambda self, calls: Rival("not run"))

    def calls(family, tokens=2):
        routes = [moe.routes(shape, tokens, "cpu", seed) for seed in range(3)]
        xs = [torch.randn(tokens, shape.hidden).to(torch.bfloat16) for _ in routes]
        inputs = [family.inputs(x, given) for x, given in zip(xs, routes)]
        return Calls(setting, xs, inputs, routes, torch.zeros_like(xs[0]), 1)

    return SimpleNamespace(setting=setting, shape=shape, calls=calls)


@pytest.mark.parametrize("kind", (moe.U4, moe.Fp8))
def test_the_seed_repeats_the_weights(card, kind):
    first, again = kind(card.setting, card.shape), kind(card.setting, card.shape)
    other = kind(dataclasses.replace(card.setting, seed=1), card.shape)

    def raw(family):
        return torch.cat([tensor.flatten().view(torch.uint8) for layer in family.layers for tensor in layer])

    assert torch.equal(raw(first), raw(again)) and not torch.equal(raw(first), raw(other))


def test_rivals_that_are_not_here_are_sentences(card, monkeypatch):
    monkeypatch.setattr(moe_rivals.importlib.util, "find_spec", lambda name: None)
    for kind in (moe.U4, moe.Fp8):
        family = kind(card.setting, card.shape)
        calls = card.calls(family)
        found = family.rivals(calls, family.truth(calls.inputs[0], calls.routes[0]))
        assert {name: rival.us for name, rival in found.items() if name != "triton two products"} == dict.fromkeys(
            ["vllm marlin"] if kind is moe.U4 else ["vllm triton", "vllm triton from bf16", "flashinfer"],
            "not installed",
        )


def test_marlin_gets_the_checked_layer_and_as_many_as_ours(card, monkeypatch):
    family = moe.U4(card.setting, card.shape)
    calls, seen = card.calls(family), []

    def adapter(w13, w13_scale, w2, w2_scale, group, sets):
        seen.append((w13.data_ptr(), group, sets))
        return [lambda x, weights, ids: family.truth(x, moe.Routes(weights, ids)).bfloat16()] * sets

    monkeypatch.setattr(moe_rivals, "marlin_int4", adapter)
    for _ in range(2):  # repacked once for all sizes
        found = family.rivals(calls, family.truth(calls.inputs[0], calls.routes[0]))["vllm marlin"]
        assert found.us > 0 and found.error < 4e-3
    assert seen == [(family.canonical.w13.data_ptr(), moe.GROUP, len(family.layers))]


def test_flashinfer_is_held_to_its_own_order_of_the_halves(card, monkeypatch):
    family = moe.Fp8(card.setting, card.shape)
    calls = card.calls(family)
    wanted = family.truth(calls.inputs[0], calls.routes[0])
    swapped = family.truth(calls.inputs[0], calls.routes[0], swapped=True)
    assert relative(swapped, wanted) > 2 * family.bound
    none = lambda *given: "not installed"  # noqa: E731
    monkeypatch.setattr(moe_rivals, "triton_fp8_block", none)
    monkeypatch.setattr(moe_rivals, "flashinfer_block", lambda layers: [lambda *given: swapped] * len(layers))
    assert family.rivals(calls, wanted)["flashinfer"].error == 0
    monkeypatch.setattr(moe_rivals, "flashinfer_block", lambda layers: [lambda *given: wanted] * len(layers))
    assert "wrong: relative error" in family.rivals(calls, wanted)["flashinfer"].us
