"""Shapes that config.json means, against what the demo writes and against one change at a time."""

from __future__ import annotations

import json

import pytest

from xpu_moe.demo.shape import Shape
from xpu_moe.demo.write import write
from xpu_moe.formats.layout import unlike
from xpu_moe.plan.checkpoint import read


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    made = {}

    def of(quant: str):
        if quant not in made:
            folder = tmp_path_factory.mktemp(quant) / "demo"
            write(folder, Shape(quant=quant))
            found = read(folder)
            made[quant] = (dict(found.config), {n: (t.shape, t.shard) for n, t in found.tensors.items()})
        config, tensors = made[quant]
        return json.loads(json.dumps(config)), dict(tensors)

    return of


def said(config, tensors) -> list[str]:
    return list(unlike(config, config.get("quantization_config") or {}, tensors))


@pytest.mark.parametrize("quant", ["none", "auto-round", "gptq", "fp8"])
def test_what_the_demo_writes_is_what_its_config_means(demo, quant):
    assert said(*demo(quant)) == []


CHANGES = [
    ({"hidden_size": 512}, "embed_tokens.weight", "wanted [320, 512]"),
    ({"intermediate_size": 512}, "w1.qweight", "wanted [32, 512]"),
    ({"num_local_experts": 4}, "block_sparse_moe.gate.weight", "wanted [4, 256]"),
    ({"num_hidden_layers": 1}, "model.layers.1.", "config.json has 1 layers"),
    ({"vocab_size": 100}, "embed_tokens.weight", "wanted [100, 256]"),
    ({"num_attention_heads": 64}, "q_proj.qweight", "got [32, 256], wanted [32, "),
]


@pytest.mark.parametrize(("change", "name", "says"), CHANGES, ids=[next(iter(c[0])) for c in CHANGES])
def test_a_tensor_of_another_size_is_named(demo, change, name, says):
    config, tensors = demo("auto-round")
    first = said({**config, **change}, tensors)[0]
    assert name in first and says in first and "(in model-0000" in first


def test_experts_stored_unlike_their_overrides_are_named(demo):
    config, tensors = demo("auto-round")
    quant = config["quantization_config"]
    quant["group_size"] = 32
    assert "experts.0.w1.scales" in said(config, tensors)[0] and "wanted [8, 256]" in said(config, tensors)[0]
    quant["group_size"], quant["block_name_to_quantize"] = 128, "model.layers.0"
    found = said(config, tensors)
    assert all("model.layers.1." in text and "leaves in 16 bits" in text for text in found) and len(found) == 72
    quant["block_name_to_quantize"] = "model.layers"
    tensors["model.layers.0.block_sparse_moe.experts.0.w1.weight"] = ((256, 256), "x")
    assert [text.split(": ")[1] for text in said(config, tensors)] == [
        "a plain matrix, of experts that are packed by config.json"
    ]


@pytest.mark.parametrize("change", [
    {"model_type": "llama"}, {"hidden_size": "256"}, {"num_hidden_layers": None}, {"num_local_experts": -1},
])  # fmt: skip
def test_another_model_and_sizes_that_are_none_are_left_to_others(demo, change):
    config, tensors = demo("auto-round")
    assert said({**config, **change}, tensors) == []


@pytest.mark.parametrize("change", [
    {"packing_format": "auto_round:auto_awq"}, {"bits": 8}, {"sym": False},
    {"extra_config": {".*experts.*": {"bits": 8}}}, {"extra_config": {"(": {}}},
])  # fmt: skip
def test_a_quantisation_that_we_do_not_read_has_no_shapes(demo, change):
    config, tensors = demo("auto-round")
    config["quantization_config"].update(change)
    name = "model.layers.0.block_sparse_moe.experts.0.w1.qweight"
    assert said(config, {**tensors, name: ((256, 32), "x")}) == []


def test_a_linear_may_have_another_width_and_mtp_layers_are_no_surplus(demo):
    config, tensors = demo("auto-round")
    tensors["model.layers.0.self_attn.q_proj.qweight"] = ((64, 256), "x")  # 8 bits
    assert said(config, tensors) == []
    config.update(num_hidden_layers=1, num_mtp_modules=1)
    assert said(config, tensors) == []
