"""The decode kernels' source on a CPU: right results for every kind of layer, whatever the interleaving, no race, no
access out of bounds, no hang; and that the emulation sees these where they are planted."""

from __future__ import annotations

import math
import re

import pytest
import torch

from tests.cuda.decode.emulated import Card, emulated
from tests.cuda.decode.planted import PLANTED
from tests.cuda.decode.soak import BOUND, Soak
from tests.cuda.decode.soak_layers import VARIANTS, Layer, Variant
from tests.cuda.emulator.emulator import Fault
from xpu_moe.cuda.decode import plan as plans

SMALL_U4, SMALL_FP8 = VARIANTS[0], VARIANTS[1]
QUICK = (0, 1, 4, 5, 11)  # of VARIANTS, in the default tier
LARGE = 2000  # hidden size from which a launch takes many seconds


def soaked(index: int, runs: int, row_blocks: int) -> None:
    variant = VARIANTS[index]
    with emulated(Card(row_blocks)):
        report = Soak(index, [variant], "cpu").run(runs)
    assert report.good and report.runs == runs, report.mismatches
    assert 0 < report.worst_error[str(variant)] < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("index", QUICK)
def test_random_launches_of_a_layer_are_right(index):
    soaked(index, 5, 4 - index % 3)


@pytest.mark.soak
@pytest.mark.parametrize("index", [i for i in range(len(VARIANTS)) if i not in QUICK], ids=lambda i: str(VARIANTS[i]))
def test_random_launches_of_every_layer_are_right(index):
    soaked(index, 2 if VARIANTS[index].hidden > LARGE else 6, 1 + index % 4)


class Call:
    """Random inputs of one launch and what it should give."""

    def __init__(self, layer: Layer, tokens: int, seed: int) -> None:
        v = layer.variant
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(tokens, v.hidden, generator=draw)
        self.scale = None
        if v.bits == 8:
            self.x = (x * 16).clamp(-448, 448).to(torch.float8_e4m3fn)
            self.scale = torch.rand(tokens, v.hidden // 128, generator=draw) / 16
        else:
            self.x = x.bfloat16()
        self.layer = layer
        self.ids = torch.stack([torch.randperm(v.experts, generator=draw)[: v.top_k] for _ in range(tokens)]).int()
        self.weights = torch.rand(tokens, v.top_k, generator=draw)
        self.out = torch.full((tokens, v.hidden), float("nan"), dtype=torch.bfloat16)

    def __call__(self) -> Call:
        self.layer.call(self.x, self.scale, self.weights, self.ids, self.out)()
        return self

    def error(self, rows: slice | list[int] = slice(None)) -> float:
        wide = self.x.float() if self.scale is None else self.x.float() * self.scale.repeat_interleave(128, 1)
        wanted = self.layer.reference(wide, self.weights, self.ids.long())[rows]
        return float((self.out[rows].float() - wanted).norm() / wanted.norm())


def bytes_of(layer: Layer, experts: int) -> int:
    """What so many experts' weights take, with the scales that are copied in bulk (4-bit)."""
    w13, s13, w2, s2 = (t.numel() * t.element_size() for t in layer.tensors)
    return (w13 + w2 + (s13 + s2 if layer.variant.bits == 4 else 0)) * experts // layer.variant.experts


LAYERS = {bits: Layer(v, 7, "cpu") for bits, v in ((4, SMALL_U4), (8, SMALL_FP8))}
WIDE = Layer(Variant(4, 1536, 128, 4, 2, group=64), 7, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("bits", (4, 8))
def test_launches_that_overlap_are_right_and_equal_inputs_give_equal_bits(bits):
    """Programmatic dependent launch: the next one starts while this one runs, and shares its state; sizes alternate."""
    with emulated(Card()) as card:
        calls = [Call(LAYERS[bits], tokens, seed) for seed, tokens in enumerate((4, 1, 3, 6, 2, 5))]
        for _ in range(3):
            with card.queue():
                for call in calls:
                    call.out.fill_(float("nan"))
                    call()
            assert max(call.error() for call in calls) < BOUND
        first = [call.out.clone() for call in calls]
        for call in reversed(calls):
            call()
        assert all(torch.equal(call.out, before) for call, before in zip(calls, first))


@pytest.mark.slow
@pytest.mark.parametrize("bits", (4, 8))
def test_the_build_for_racecheck_gives_the_same_bits(bits, monkeypatch):
    """STRICT: every lane arrives at barriers, so their counts are others."""
    with emulated(Card()):
        usual = [Call(LAYERS[bits], tokens, tokens)() for tokens in (1, 3, 6)]
    monkeypatch.setattr(plans, "STRICT", True)
    with emulated(Card()):
        strict = [Call(LAYERS[bits], tokens, tokens)() for tokens in (1, 3, 6)]
    assert all(torch.equal(a.out, b.out) for a, b in zip(usual, strict))
    assert max(call.error() for call in strict) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("bits", (4, 8))
@pytest.mark.parametrize("tokens", (1, 4, 16))
def test_the_bytes_that_are_copied_are_those_of_the_experts_in_use(bits, tokens):
    """Two tokens that share an expert read it once; what is read beside it is not copied in bulk."""
    layer = LAYERS[bits]
    with emulated(Card(races=False)) as card:
        call = Call(layer, tokens, 1)()
    assert card.counted[-1].copied_bytes == bytes_of(layer, len(call.ids.unique()))
    assert call.error() < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("value", (math.inf, math.nan), ids=("inf", "nan"))
@pytest.mark.parametrize("activation", ("silu", "relu2_no_mul"))
@pytest.mark.parametrize("tokens", (4, 6))
def test_a_token_that_is_not_finite_gives_no_number_and_the_others_are_right(tokens, activation, value):
    layer = LAYERS[4] if activation == "silu" else Layer(Variant(4, 256, 128, 8, 2, activation), 7, "cpu")
    call = Call(layer, tokens, 3)
    call.x[1, 5] = value
    call.ids[1] = call.ids[0]  # it shares its experts
    with emulated(Card()):
        call()
    assert not bool(call.out[1].isfinite().any())
    assert call.error([i for i in range(tokens) if i != 1]) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("value", (math.inf, math.nan), ids=("inf", "nan"))
@pytest.mark.parametrize("activation", ("silu", "relu2_no_mul"))
def test_one_token_that_is_not_finite_gives_no_number(activation, value):
    layer = LAYERS[4] if activation == "silu" else Layer(Variant(4, 256, 128, 8, 2, activation), 7, "cpu")
    call = Call(layer, 1, 3)
    call.x[0, 5] = value
    with emulated(Card()):
        call()
    assert not bool(call.out.isfinite().any())


@pytest.mark.slow
@pytest.mark.parametrize("bits", (4, 8))
def test_one_token_may_list_an_expert_twice_or_none(bits):
    layer = LAYERS[bits]
    twice, none = Call(layer, 1, 4), Call(layer, 1, 5)
    twice.ids[0, 1] = twice.ids[0, 0]
    none.ids[0] = torch.tensor([-1, 1 << 20])
    with emulated(Card()) as card:
        twice(), none()
    assert card.counted[0].copied_bytes == bytes_of(layer, 2) and twice.error() < BOUND
    assert card.counted[1].copied_bytes == 0 and bool((none.out == 0).all())


@pytest.mark.slow
@pytest.mark.parametrize("bits", (4, 8))
@pytest.mark.parametrize("tokens", (2, 3, 6))
def test_one_expert_or_none_leaves_blocks_without_a_unit(tokens, bits):
    """A grid of more blocks than an expert has units, so that some begin with a stage of W2, or with nothing."""
    layer = LAYERS[bits]
    one, none, last = (Call(layer, tokens, seed) for seed in (3, 4, 5))
    one.ids.fill_(3)
    none.ids.fill_(1 << 20)
    last.ids.fill_(-1)
    last.ids[-1, -1] = 2
    with emulated(Card(1)) as card, card.queue():
        one(), none(), last()
    assert max(one.error(), last.error()) < BOUND and bool((none.out == 0).all())
    assert card.counted[0].copied_bytes == bytes_of(layer, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    (WIDE.variant, Variant(8, 1536, 128, 4, 2), Variant(4, 3072, 256, 4, 3, "relu2_no_mul", group=32)),
    ids=str,
)
def test_one_token_whose_blocks_are_shared_out_evenly(variant):
    """Every warp has as many blocks of k, side by side, and a 4-bit unit comes in pieces."""
    layer = Layer(variant, 7, "cpu")
    calls = [Call(layer, 1, seed) for seed in range(3)]
    with emulated(Card(3)) as card:
        calls[0]()
        with card.queue():
            for call in calls:
                call()
    assert max(call.error() for call in calls) < BOUND
    assert card.counted[0].copied_bytes == bytes_of(layer, variant.top_k)


@pytest.mark.slow
def test_one_token_of_as_many_experts_as_a_layer_may_have():
    """More than the kernel for one token has threads."""
    call = Call(Layer(Variant(4, 128, 128, 512, 2), 7, "cpu"), 1, 3)
    with emulated(Card()):
        call()
    assert call.error() < BOUND


@pytest.mark.soak
@pytest.mark.parametrize("bits", (4, 8))
def test_the_models_own_sizes(bits):
    """Hidden 3072, intermediate 384 (a quarter), top-8, 132 thread blocks, as on an H200; 16 experts."""
    layer = Layer(Variant(bits, 3072, 384, 16, 8), 7, "cpu")
    with emulated(Card(3)) as card:
        for tokens in (1, 3):
            assert Call(layer, tokens, tokens)().error() < BOUND
    assert card.counted[0].copied_bytes == bytes_of(layer, 8)


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED, ids=str)
def test_a_planted_fault_is_found(fault):
    found = ""
    with emulated(Card(fault.row_blocks, edit=fault.edit)) as card:
        for seed in range(8):
            layer = WIDE if fault.wide else LAYERS[fault.bits]
            calls = [Call(layer, fault.tokens, seed * 4 + i) for i in range(4)]
            calls[1].ids.fill_(seed % 2)  # one expert: some blocks have no unit
            calls[2].ids[0, 1] = 1 << 20  # of no account, where ids are checked
            calls[3].x[0] = 0
            try:
                with card.queue():
                    for call in calls:
                        call()
            except Fault as said:
                found = str(said)
                break
            if not max(call.error() for call in calls) < BOUND:
                found = "wrong numbers"
                break
    assert re.search(fault.said, found), found
