"""vLLM 0.26, from its bare Python files: it loads the checkpoint through the plugin, and the layer is right."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from tests.serving import checkpoints, layer_child, older_vllm
from tests.serving.test_engine import layer_inputs
from xpu_moe.cpu.moe_u4 import reference
from xpu_moe.formats.checkpoint import load_layer
from xpu_moe.serving import report

pytestmark = [pytest.mark.soak, pytest.mark.vllm]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """What the child found, for an AutoRound and a GPTQ checkpoint (the latter with g_idx, which 0.26 loads)."""
    folder = tmp_path_factory.mktemp("older")
    models = {
        quant: checkpoints.make(folder, quant, quant=quant, scale_bits=11) for quant in ("auto-round", "gptq")
    }  # fmt: skip
    layer_inputs(folder / "layer.pt", 256, 8, 2)
    environ = {**os.environ, "PYTHONPATH": str(older_vllm.tree("0.26.0")), "XPU_MOE_REPORT": str(folder / "report")}
    arguments = [str(folder / "layer.pt"), str(folder / "out.pt"), *map(str, models.values())]
    done = subprocess.run(
        [sys.executable, layer_child.__file__, *arguments], env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return torch.load(folder / "out.pt", weights_only=True), models, folder


@pytest.mark.parametrize("quant", ["auto-round", "gptq"])
def test_026_loads_through_the_plugin_and_the_layer_equals_float64(loaded, quant):
    found, models, folder = loaded
    assert found["version"].startswith("0.26")
    layer = found["models"][str(models[quant])]
    assert layer["method"] == "Int4MoeMethod"
    ours = [name for name in layer["parameters"] if name.startswith("w")]
    assert ours == ["w13_scales", "w13_weight", "w2_scales", "w2_weight"], "g_idx and zero points went"
    x, weights, ids = torch.load(folder / "layer.pt", weights_only=True)
    kept = load_layer(models[quant], 0)
    truth = reference(x, kept.w13, kept.w13_scale, kept.w2, kept.w2_scale, weights, ids, nibble="u4", group_size=128)
    assert float((layer["out"].double() - truth).norm() / truth.norm()) < 1e-5


def test_026_tells_its_backend(loaded):
    told = report.summary(loaded[2] / "report")
    assert told["backend"] == "cpu_grouped"
    assert {layer["kind"] for layer in told["layers"]} == {"moe_int4", "linear_int4"}
