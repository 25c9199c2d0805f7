"""Which checkpoints are taken, on the config that AutoRound and GPTQ write."""

from __future__ import annotations

import time

import pytest

from xpu_moe.demo.shape import Shape, quantization_config
from xpu_moe.formats.claims import AUTO_ROUND, FP8, GPTQ, experts_of_layer, judge_fp8, judge_int4
from xpu_moe.formats.quantization import UnsupportedCheckpoint

ROUND = quantization_config(Shape(quant="auto-round"))
PACKED = quantization_config(Shape(quant="gptq"))


def judge(config, own=AUTO_ROUND, model="minimax_m2", asked=None, device="cpu"):
    return judge_int4(own, config, model, asked, device)


@pytest.mark.parametrize("device", ["cpu", "xpu", "cuda"])
@pytest.mark.parametrize("own, config", [(AUTO_ROUND, ROUND), (GPTQ, PACKED)])
def test_a_minimax_checkpoint_is_taken_without_a_flag(own, config, device):
    assert judge(config, own, device=device).name == own
    assert judge(config, own, asked=own, device=device).name == own


def test_each_method_takes_its_own_family():
    assert judge(PACKED, AUTO_ROUND).name is None and judge(ROUND, GPTQ).name is None
    assert judge({"quant_method": "fp8"}).name is None


@pytest.mark.parametrize("asked", ["inc", "gptq", "moe_wna16"])
def test_a_method_that_the_user_names_wins(asked):
    claim = judge(ROUND, asked=asked)
    assert claim.name is None and asked in claim.reason


def test_another_model_is_not_our_business():
    assert judge(ROUND, model="qwen3_moe").name is None
    with pytest.raises(UnsupportedCheckpoint, match="model_type"):
        judge(ROUND, model="qwen3_moe", asked=AUTO_ROUND)


REFUSED = [
    ({"bits": 8}, "bits"),
    ({"sym": False}, "sym"),
    ({"desc_act": True}, "desc_act"),
    ({"group_size": 256}, "group_size"),
    ({"data_type": "fp"}, "data_type"),
    ({"packing_format": "auto_round:auto_awq"}, "packing_format"),
]


@pytest.mark.parametrize("change, field", REFUSED)
def test_what_nobody_serves_there_is_refused_by_field(change, field):
    for device in ("cpu", "xpu"):
        with pytest.raises(UnsupportedCheckpoint, match=field):
            judge({**ROUND, **change}, device=device)


@pytest.mark.parametrize("change, field", REFUSED)
def test_on_cuda_it_is_left_to_vllm_with_the_field_in_the_note(change, field):
    claim = judge({**ROUND, **change}, device="cuda")
    assert claim.name is None and field in claim.reason
    with pytest.raises(UnsupportedCheckpoint, match=field):
        judge({**ROUND, **change}, device="cuda", asked=AUTO_ROUND)


def test_experts_without_override_have_the_checkpoints_format():
    assert experts_of_layer(ROUND, 0, 8).spec.group_size == 128
    assert experts_of_layer(PACKED, 1, 8).spec.zero_point == 7


def override(**extra):
    return {**ROUND, "extra_config": {**ROUND["extra_config"], **extra}}


def test_a_layer_left_in_16_bits_is_not_quantised():
    plain = {"bits": 16, "data_type": "float"}
    for key in ("model.layers.1.block_sparse_moe.experts", r"model\.layers\.1\.block_sparse_moe\.experts\..*"):
        config = override(**{key: plain})
        assert experts_of_layer(config, 1, 4).spec is None
        assert experts_of_layer(config, 0, 4).spec is not None
    skipped = {**PACKED, "dynamic": {r"-:.*layers\.1\..*experts.*": {}}}
    assert experts_of_layer(skipped, 1, 4).spec is None and experts_of_layer(skipped, 0, 4).spec is not None


def test_gptq_matches_from_the_start_of_a_name_and_auto_round_anywhere():
    assert experts_of_layer({**PACKED, "dynamic": {r"-:layers\.1\.": {}}}, 1, 4).spec is not None
    assert experts_of_layer({**PACKED, "dynamic": {r"-:model\.layers\.1\.": {}}}, 1, 4).spec is None
    assert experts_of_layer(override(**{r"layers\.1\.": {"bits": 16}}), 1, 4).spec is None


def test_a_whole_name_counts_before_a_regular_expression_that_stands_first():
    whole = {f"model.layers.1.block_sparse_moe.experts.0.{part}": {"bits": 4} for part in ("w1", "w2", "w3")}
    assert experts_of_layer(override(**{r".*experts\..*": {"bits": 16}, **whole}), 1, 1).spec is not None


@pytest.mark.parametrize("blocks", ["model.layers.0,model.layers.2", ["model.layers.0", "model.layers.2"]])
def test_a_layer_outside_of_the_quantised_blocks_is_not_quantised(blocks):
    config = {**ROUND, "block_name_to_quantize": blocks}
    assert [experts_of_layer(config, layer, 4).spec is None for layer in range(3)] == [False, True, False]
    with pytest.raises(UnsupportedCheckpoint, match="block_name_to_quantize: got '7', wanted names"):
        experts_of_layer({**config, "block_name_to_quantize": 7}, 0, 4)


def test_another_group_size_for_a_layer_is_honoured():
    config = override(**{"model.layers.0.block_sparse_moe.experts": {"group_size": 32}})
    assert experts_of_layer(config, 0, 4).spec.group_size == 32


@pytest.mark.parametrize(
    "fields, named", [({"bits": 8}, "bits"), ({"sym": False}, "sym"), ({"group_size": 48}, "group")]
)
def test_an_override_that_cannot_be_served_is_named(fields, named):
    with pytest.raises(UnsupportedCheckpoint, match=rf"experts\.0\.w1: {named}"):
        experts_of_layer(override(**{"model.layers.0.block_sparse_moe.experts": fields}), 0, 4)


def test_experts_of_one_layer_that_differ_are_refused():
    with pytest.raises(UnsupportedCheckpoint, match=r"experts\.0\.w1 has .*experts\.2\.w1"):
        experts_of_layer(override(**{"model.layers.0.block_sparse_moe.experts.2": {"bits": 16}}), 0, 4)


def test_a_broken_pattern_is_named():
    with pytest.raises(UnsupportedCheckpoint, match="regular expression"):
        experts_of_layer(override(**{"model.(": {"bits": 16}}), 0, 4)


BLOCKS = quantization_config(Shape(quant="fp8"))


def test_block_fp8_is_taken_where_stock_cannot_and_where_it_is_asked_for():
    assert judge_fp8(BLOCKS, "minimax_m2", None, "cpu").name == FP8
    assert judge_fp8(BLOCKS, "minimax_m2", None, "cuda").name is None
    assert judge_fp8(BLOCKS, "minimax_m2", FP8, "cuda").name == FP8
    assert judge_fp8(BLOCKS, "minimax_m2", "fp8", "cpu").name is None
    assert judge_fp8(BLOCKS, "deepseek_v3", None, "cpu").name is None


@pytest.mark.parametrize("change, field", [({"weight_block_size": None}, "weight_block_size"),
                                           ({"activation_scheme": "static"}, "activation_scheme")])  # fmt: skip
def test_other_fp8_is_left_or_refused_by_field(change, field):
    assert judge_fp8({**BLOCKS, **change}, "minimax_m2", None, "cpu").name is None
    with pytest.raises(UnsupportedCheckpoint, match=field):
        judge_fp8({**BLOCKS, **change}, "minimax_m2", FP8, "cuda")


@pytest.mark.parametrize("config", [
    {**ROUND, "extra_config": ["a"]}, {**ROUND, "extra_config": {"x": 4}}, {**PACKED, "dynamic": {"-:x": 1}},
    override(**{"model.layers.0.block_sparse_moe.experts": {"bits": [4]}}),
])  # fmt: skip
def test_overrides_of_another_type_are_refused_and_no_traceback(config):
    with pytest.raises(UnsupportedCheckpoint, match="quantization_config"):
        experts_of_layer(config, 0, 4)


def test_overrides_of_other_modules_cost_no_time():
    """62 layers of 256 experts beside 1000 overrides of routers and attention: the doctor asks for all of them."""
    config = override(**{f"model.layers.{n}.self_attn.q_proj": {"bits": 16} for n in range(1000)})
    before = time.process_time()
    assert all(experts_of_layer(config, layer, 256).spec.group_size == 128 for layer in range(62))
    assert time.process_time() - before < 1
