"""The canonical dataclass checks itself, and its nibble kind changes in place."""

from __future__ import annotations

import pytest
import torch

from xpu_moe.cpu.moe_u4 import reference
from xpu_moe.formats import int4
from xpu_moe.formats.quantization import UnsupportedCheckpoint, read_int4

GOOD = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int"}


def filled(nibble: str = "u4") -> int4.Int4MoeWeights:
    weights = int4.empty(3, 128, 64, 32, nibble=nibble)
    for tensor in (weights.w13, weights.w2):
        tensor.random_(0, 256, generator=torch.Generator().manual_seed(3))
    for tensor in (weights.w13_scale, weights.w2_scale):
        tensor.uniform_(0.001, 0.02)
    return weights


def test_s4_is_u4_xor_0x88_in_place_and_means_the_same():
    weights = filled()
    address, before = weights.w13.data_ptr(), weights.w13.clone()
    x, route = torch.randn(2, 128), torch.rand(2, 2)
    ids = torch.tensor([[0, 2], [1, 1]])
    truth = reference(x, weights.w13, weights.w13_scale, weights.w2, weights.w2_scale, route, ids, nibble="u4",
                      group_size=32)  # fmt: skip
    turned = weights.as_nibble("s4")
    assert turned.w13.data_ptr() == address and torch.equal(turned.w13, before ^ 0x88)
    again = reference(x, turned.w13, turned.w13_scale, turned.w2, turned.w2_scale, route, ids, nibble="s4",
                      group_size=32)  # fmt: skip
    assert torch.equal(truth, again)
    assert torch.equal(turned.as_nibble("s4").w13, before ^ 0x88), "a second request changes nothing"
    assert torch.equal(turned.as_nibble("u4").w13, before)


def test_bytes_of_an_expert_at_tp4_are_the_published_number():
    assert int4.empty(1, 3072, 384, 128).nbytes == 1_824_768


@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"nibble": "i4"}, "nibble: got 'i4', wanted u4 or s4"),
        ({"group_size": 48}, "group_size: got 48"),
        ({"w13": torch.zeros(3, 120, 64, dtype=torch.uint8)}, r"w13.shape: got \(3, 120, 64\), wanted \(3, 128, 64\)"),
        ({"w2_scale": torch.zeros(3, 128, 2)[..., :1].half()}, r"w2_scale.shape"),
        ({"w2": torch.zeros(3, 128, 32, dtype=torch.int32)}, r"w2.dtype: got torch.int32"),
    ),
)
def test_what_does_not_fit_is_refused_by_name(change, message):
    weights = filled()
    fields = {name: getattr(weights, name) for name in weights.__dataclass_fields__}
    with pytest.raises(UnsupportedCheckpoint, match=message):
        int4.Int4MoeWeights(**fields | change)


@pytest.mark.parametrize(
    ("field", "value"),
    (
        ("bits", 8), ("bits", None), ("sym", False), ("desc_act", True), ("group_size", -1), ("group_size", 16),
        ("data_type", "mx_fp"), ("packing_format", "auto_round:auto_awq"), ("quant_method", "awq"),
    ),
)  # fmt: skip
def test_a_config_that_cannot_be_served_names_the_field(field, value):
    with pytest.raises(UnsupportedCheckpoint, match=rf"quantization_config\.{field}: got"):
        read_int4(GOOD | {field: value})


@pytest.mark.parametrize(
    ("change", "method", "zero_point"),
    (
        ({}, "auto-round", 7),
        ({"packing_format": "auto_round"}, "auto-round", 8),
        ({"quant_method": "gptq"}, "gptq", 7),
        ({"quant_method": "gptq", "checkpoint_format": "gptq_v2"}, "gptq", 8),
    ),
)
def test_conventions_of_a_config(change, method, zero_point):
    spec = read_int4(GOOD | change)
    assert (spec.method, spec.group_size, spec.zero_point) == (method, 128, zero_point)


def test_weights_without_gate_stay_so_when_the_nibbles_turn():
    weights = int4.empty(2, 64, 32, 32, gated=False)
    turned = weights.as_nibble("s4")
    assert (turned.nibble, turned.gated, turned.w13.data_ptr()) == ("s4", False, weights.w13.data_ptr())
