"""Overrides of a layer's experts against vLLM's own answers for the name that it asks with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from xpu_moe.demo.shape import Shape, quantization_config
from xpu_moe.formats.claims import experts_of_layer
from xpu_moe.formats.quantization import UnsupportedCheckpoint

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

ROUND = quantization_config(Shape(quant="auto-round"))
PACKED = quantization_config(Shape(quant="gptq"))
LAYER = 11
NAME = f"model.layers.{LAYER}.mlp.experts"
PLAIN, WIDE, SMALL = {"bits": 16}, {"bits": 8}, {"group_size": 32}

DYNAMIC = [
    {}, {"-:.*experts.*": {}}, {"-:experts": {}}, {r"-:layers\.11\.": {}}, {r"-:model\.layers\.11\.": {}},
    {r"-:^model\.layers\.1": {}}, {r"-:.*\.mlp\..*": {}}, {"-:mlp": {}}, {"+:.*experts": SMALL}, {"+:experts": SMALL},
    {".*experts": SMALL}, {"experts": SMALL}, {"+:.*": WIDE}, {"-:.*gate$": {}}, {"+:-:model": {}},
    {"+:.*1.*": SMALL, "-:.*": {}}, {"-:.*1.*": {}, "+:.*": WIDE}, {"+:.*": {}, "-:.*": {}}, {"": SMALL}, {"-:": {}},
    {r".*\.layers\.(?:1[0-5])\..*": SMALL}, {r"-:.*layers\.(1|2)\..*": {}}, {r"-:MODEL.*": {}}, {r"-:(?i)MODEL.*": {}},
]  # fmt: skip
EXTRA = [
    {}, {NAME: PLAIN}, {NAME: WIDE}, {NAME: SMALL}, {NAME: {**SMALL, "bits": 4}}, {"experts": PLAIN},
    {"mlp.experts": SMALL}, {"mlp": PLAIN}, {"perts": PLAIN}, {".*experts.*": PLAIN},
    {r"layers\.11\.": SMALL}, {r"^layers\.11\.": SMALL}, {"layers.11.": SMALL}, {r"11\.mlp": WIDE}, {"gate$": PLAIN},
    {".*experts.*": PLAIN, NAME: {"bits": 4}}, {".*experts.*": PLAIN, "experts": SMALL},
    {"experts": SMALL, "mlp.experts": PLAIN}, {".*mlp.*": SMALL, ".*experts": PLAIN}, {".*": {"bits": 4}, ".+": PLAIN},
    {r"layers\.(1|2)\.": PLAIN}, {"lm_head": PLAIN}, {".*experts": {"sym": False}},
]  # fmt: skip
BLOCKS = [None, "model.layers", "model.layers.11", "model.layers.1", "model.layers.2,model.layers.3", "layers", []]


def ours(config) -> object:
    """(bits, group) of the experts, 16 where they are not quantised, "refused" where another format is said."""
    try:
        spec = experts_of_layer(config, LAYER, 4).spec
    except UnsupportedCheckpoint:
        return "refused"
    return (4, spec.group_size) if spec else 16


def theirs(bits, group, sym) -> object:
    if bits >= 16:
        return 16
    return (4, group) if bits == 4 and sym else "refused"


@pytest.mark.parametrize("dynamic", DYNAMIC, ids=str)
def test_gptq_is_read_as_vllm_reads_it(dynamic):
    from vllm.model_executor.layers.quantization.utils.gptq_utils import get_dynamic_override

    asked = SimpleNamespace(dynamic=dynamic)
    if get_dynamic_override(asked, NAME) is False:
        wanted = 16
    else:
        wanted = theirs(*(get_dynamic_override(asked, NAME, *field) for field in
                          (("bits", 4), ("group_size", PACKED["group_size"]), ("sym", True))))  # fmt: skip
    assert ours({**PACKED, "dynamic": dynamic}) == wanted


@pytest.fixture
def stock_inc(monkeypatch):
    """What vLLM's INCConfig makes of a config for the layer, with stand-ins for the classes that it would make."""
    from vllm.model_executor.layers.fused_moe import RoutedExperts
    from vllm.model_executor.layers.quantization.inc import inc
    from vllm.model_executor.layers.quantization.inc.schemes import factory

    layer = object.__new__(RoutedExperts)
    object.__setattr__(layer, "moe_config", None)
    monkeypatch.setattr(inc, "UnquantizedFusedMoEMethod", lambda config: 16)
    monkeypatch.setattr(factory, "resolve_scheme", lambda told: SimpleNamespace(
        get_moe_method=lambda *_: theirs(told.bits, told.group_size, told.sym)))  # fmt: skip

    def ask(config):
        made = inc.INCConfig.from_config(config)
        made.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
        return made.get_quant_method(layer, NAME)

    return ask


@pytest.mark.parametrize("extra", EXTRA, ids=str)
def test_auto_round_is_read_as_vllm_reads_it(stock_inc, extra):
    config = {**ROUND, "extra_config": extra}
    assert ours(config) == stock_inc(config)


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("extra", [{}, {".*experts": SMALL}, {NAME: {"bits": 4}}, {"lm_head": PLAIN}], ids=str)
def test_blocks_are_read_as_vllm_reads_them(stock_inc, blocks, extra):
    config = {**ROUND, "block_name_to_quantize": blocks, "extra_config": extra}
    assert ours(config) == stock_inc(config)
