"""The CPU's dequantised linears, on vLLM's own parameter classes: the product, and scales that are no numbers."""

from __future__ import annotations

import pytest
import torch

from tests.ops.table import relative_error
from xpu_moe.formats.quantization import Int4Spec, UnsupportedCheckpoint
from xpu_moe.serving import compat, tell
from xpu_moe.serving.report import Worker

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

PREFIX = "model.layers.3.self_attn.qkv_proj"
DEPTH, WIDTHS = 256, [256, 128]


@pytest.fixture
def made(monkeypatch):
    """Makes (method, layer) of one class, its parameters as `create_weights` leaves them; ranks are a stand-in."""
    from vllm.model_executor import parameter

    from xpu_moe.serving.linear_fp8 import DequantizedFp8Linear
    from xpu_moe.serving.linear_int4 import DequantizedLinear

    monkeypatch.setattr(parameter, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_world_size", lambda: 1)
    monkeypatch.setattr(compat, "device_kind", lambda: "cpu")
    monkeypatch.setattr(compat, "rank_and_world", lambda: (0, 1))
    monkeypatch.setattr(tell, "_worker", Worker())

    def make(kind):
        methods = {
            "fp8": lambda: DequantizedFp8Linear([128, 128], PREFIX),
            "int4": lambda: DequantizedLinear(Int4Spec("gptq", 128, 8), PREFIX),
        }
        method, layer = methods[kind](), torch.nn.Module()
        method.create_weights(
            layer, DEPTH, WIDTHS, DEPTH, sum(WIDTHS), torch.float32, weight_loader=lambda param, loaded: None
        )
        return method, layer

    return make


SCALES = {"fp8": "weight_scale_inv", "int4": "scales"}


def fill(layer) -> None:
    draw = torch.Generator().manual_seed(2)
    for name, parameter in layer.named_parameters():
        if name in SCALES.values():
            parameter.data.copy_(torch.rand(parameter.shape, generator=draw) * 0.01 + 0.001)
        elif name == "weight":
            parameter.data.copy_((torch.rand(parameter.shape, generator=draw) - 0.5) * 200)
        elif name == "qweight":
            parameter.data.copy_(torch.randint(-(2**31), 2**31, parameter.shape, generator=draw).to(torch.int32))


def test_a_block_scaled_fp8_linear_is_the_dense_one(made):
    method, layer = made("fp8")
    fill(layer)
    weight, scale = layer.weight.data.double(), layer.weight_scale_inv.data.double()
    dense = (weight.view(3, 128, 2, 128) * scale[:, None, :, None]).reshape(sum(WIDTHS), DEPTH)
    method.process_weights_after_loading(layer)
    x = torch.randn(5, DEPTH, generator=torch.Generator().manual_seed(3))
    assert list(layer._parameters) == ["weight"] and layer.weight.dtype == torch.float32
    assert relative_error(method.apply(layer, x), x.double() @ dense.t()) < 1e-5
    (told,) = tell._worker.layers
    assert (told.kind, told.backend) == ("linear_fp8", "dequantized")


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("value", (torch.nan, torch.inf, -torch.inf))
def test_a_scale_that_is_no_number_is_refused_by_name(made, kind, value):
    method, layer = made(kind)
    fill(layer)
    scales = getattr(layer, SCALES[kind]).data
    scales[1, 1] = value
    words = rf"{PREFIX}\.{SCALES[kind]}: 1 of {scales.numel()} scales are NaN or infinite, or missing"
    with pytest.raises(UnsupportedCheckpoint, match=words):
        method.process_weights_after_loading(layer)


@pytest.mark.parametrize("kind", SCALES)
def test_scales_that_no_checkpoint_brought_are_refused(made, kind):
    method, layer = made(kind)
    scales = getattr(layer, SCALES[kind]).data
    count = scales.numel()
    with pytest.raises(UnsupportedCheckpoint, match=f"{count} of {count} scales are NaN or infinite, or missing"):
        method.process_weights_after_loading(layer)
