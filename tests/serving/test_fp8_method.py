"""The FP8 method's decode on prepared inputs, with the CPU's arithmetic standing for a CUDA card's."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.ops.table import relative_error
from xpu_moe.cpu.moe_fp8_block import BlockScaled, reference
from xpu_moe.cpu.route_and_quant_fp8 import Pair
from xpu_moe.cpu.route_sigmoid_topk import SortedRows
from xpu_moe.ops import contract
from xpu_moe.ops.route_and_quant_fp8 import prepare_inputs
from xpu_moe.serving import compat, tell
from xpu_moe.serving.report import Worker

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
EXPERTS, HIDDEN, INTER, TOP_K = 4, 256, 128, 2


@pytest.fixture
def made(monkeypatch):
    """(method, layer) with random weights, on a device that vLLM calls cuda."""
    room = ModuleType("stand_in_room")
    room.BACKENDS = (BlockScaled(), Pair(), SortedRows())
    monkeypatch.setitem(sys.modules, room.__name__, room)
    monkeypatch.setattr(contract, "ROOMS", {"cuda": (room.__name__,), "cpu": (room.__name__,)})
    contract.backends.cache_clear()
    contract.select.cache_clear()
    monkeypatch.setattr(compat, "device_kind", lambda: "cuda")
    monkeypatch.setattr(compat, "rank_and_world", lambda: (0, 1))
    monkeypatch.setattr(tell, "_worker", Worker())
    config = SimpleNamespace(
        additional_config={"xpu_moe": {"decode_limit": 4}}, scheduler_config=SimpleNamespace(max_num_batched_tokens=64)
    )
    monkeypatch.setattr(compat, "vllm_config", lambda: config)
    from xpu_moe.serving.moe_fp8 import Fp8MoeMethod

    layer = torch.nn.Module()
    fields = {
        "layer_name": "model.layers.0.mlp.experts", "activation": SimpleNamespace(value="silu"), "use_ep": False,
        "apply_router_weight_on_input": False, "global_num_experts": EXPERTS, "top_k": TOP_K, "renormalize": True,
        "scoring_func": "sigmoid", "use_grouped_topk": False, "custom_routing_function": None,
        "routed_scaling_factor": 1.0, "e_score_correction_bias": torch.linspace(-0.1, 0.1, EXPERTS),
    }  # fmt: skip
    for name, value in fields.items():
        setattr(layer, name, value)
    method = Fp8MoeMethod(SimpleNamespace(tp_size=1))
    method.create_weights(layer, EXPERTS, HIDDEN, INTER, torch.bfloat16, weight_loader=None)
    draw = torch.Generator().manual_seed(1)
    for name, parameter in layer.named_parameters():
        random = torch.rand(parameter.shape, generator=draw)
        parameter.data.copy_(random * 0.01 + 0.001 if name.endswith("scale_inv") else (random - 0.5) * 20)
    method.process_weights_after_loading(layer)
    yield method, layer
    contract.backends.cache_clear()
    contract.select.cache_clear()


def weights(layer):
    return layer.w13_weight, layer.w13_weight_scale_inv, layer.w2_weight, layer.w2_weight_scale_inv


@pytest.mark.parametrize("tokens", [1, 4, 5, 40])
def test_decode_takes_prepared_inputs_and_prefill_plain_ones(made, tokens):
    method, layer = made
    assert method.is_monolithic
    draw = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, HIDDEN, generator=draw).bfloat16()
    logits = torch.randn(tokens, EXPERTS, generator=draw)
    out = method.apply_monolithic(layer, x, logits)
    prepared = prepare_inputs(x, logits, layer.e_score_correction_bias, TOP_K)
    routes = prepared.topk_weights, prepared.topk_ids
    on_codes = reference(prepared.x_q, prepared.x_scale, *weights(layer), *routes)
    on_x = reference(x, None, *weights(layer), *routes)
    near, far = (on_codes, on_x) if tokens <= 4 else (on_x, on_codes)
    assert out.dtype == torch.bfloat16
    assert relative_error(out, near) < 1e-2 < relative_error(out, far)


def test_it_tells_who_serves_and_who_routes(made):
    (told,) = tell._worker.layers
    assert (told.kind, told.backend, told.prefill_backend) == ("moe_fp8", "cpu_grouped", "cpu_grouped")
    assert told.routing.startswith("route_and_quant_fp8: ") and told.bytes_kept == told.bytes_loaded
