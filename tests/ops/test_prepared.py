"""PreparedInputs check themselves and say why a consumer cannot take them."""

from __future__ import annotations

import pytest
import torch

from xpu_moe.ops.checks import BadArgument
from xpu_moe.ops.prepared import COLUMN_MAJOR, ROW_MAJOR, PreparedInputs, aligned_tokens, empty_scale


def made(tokens: int = 3, hidden: int = 256, layout: str = ROW_MAJOR, **changes) -> PreparedInputs:
    padded = -(-hidden // 128) * 128
    fields = {
        "topk_weights": torch.rand(tokens, 2),
        "topk_ids": torch.zeros(tokens, 2, dtype=torch.int32),
        "x_q": torch.ones(tokens, padded).to(torch.float8_e4m3fn),
        "x_scale": empty_scale(tokens, padded // 128, layout, "cpu").fill_(2.0),
        "hidden_size": hidden,
        "scale_layout": layout,
        **changes,
    }
    return PreparedInputs(**fields)


@pytest.mark.parametrize("hidden, padded", ((3072, 3072), (3000, 3072), (128, 128), (64, 128), (1, 128)))
@pytest.mark.parametrize("layout", (ROW_MAJOR, COLUMN_MAJOR))
def test_every_hidden_size_has_its_padded_one(hidden, padded, layout):
    inputs = made(5, hidden, layout)
    assert (inputs.tokens, inputs.padded_hidden_size, inputs.top_k) == (5, padded, 2)
    assert inputs.dequantized().shape == (5, hidden) and float(inputs.dequantized().sum()) == 10.0 * hidden


def test_column_major_scales_begin_every_column_at_16_bytes():
    assert [aligned_tokens(n) for n in (0, 1, 4, 5)] == [0, 4, 4, 8]
    assert made(5, layout=COLUMN_MAJOR).x_scale.stride() == (1, 8)


@pytest.mark.parametrize(
    "changes, words",
    (
        ({"x_q": torch.zeros(3, 384).to(torch.float8_e4m3fn)}, r"x_q.shape\[1\]: got 384, wanted 256"),
        ({"x_q": torch.zeros(3, 256)}, "x_q.dtype: got torch.float32"),
        ({"x_scale": torch.zeros(3, 1)}, r"x_scale.shape: got \(3, 1\), wanted \(3, 2\)"),
        ({"x_scale": torch.zeros(2, 3).t()}, r"x_scale.stride\(\): got \(1, 3\), wanted \(2, 1\), row_major"),
        ({"topk_ids": torch.zeros(4, 2, dtype=torch.int32)}, r"topk_ids.shape\[0\]: got 4, wanted 3"),
        ({"topk_ids": torch.zeros(3, 2, dtype=torch.int64)}, "topk_ids.dtype: got torch.int64"),
        ({"topk_weights": torch.zeros(3, 1)}, r"topk_weights.shape: got \(3, 1\)"),
        ({"scale_layout": "diagonal"}, "scale_layout: got 'diagonal'"),
        ({"group_size": 64}, "group_size: got 64, wanted 128"),
        ({"hidden_size": 0}, "hidden_size: got 0"),
    ),
)
def test_what_does_not_belong_together_is_refused(changes, words):
    with pytest.raises(BadArgument, match=words):
        made(**changes)


@pytest.mark.parametrize(
    "wanted, words",
    (
        ({"hidden_size": 384}, "hidden_size: prepared for 256, the weights have 384"),
        ({"hidden_size": 256, "tokens": 4}, "prepared for 3 tokens, the call has 4"),
        (
            {"hidden_size": 256, "scale_layouts": (COLUMN_MAJOR,)},
            "scale_layout: prepared row_major, wanted column_major",
        ),
        ({"hidden_size": 256, "scale_ue8m0": True}, "scale_ue8m0: prepared False, wanted True"),
    ),
)
def test_a_consumer_is_told_the_field_that_does_not_fit(wanted, words):
    inputs = made()
    assert words in inputs.refusal(**wanted)
    with pytest.raises(BadArgument, match=words):
        inputs.require(**wanted)
    assert inputs.refusal(hidden_size=256, tokens=3, scale_ue8m0=False) == ""


def test_padding_that_the_weights_do_not_have_is_an_error():
    words = "prepared with 256 padded columns, the weights have 200"
    assert words in made(hidden=200).refusal(hidden_size=200)
