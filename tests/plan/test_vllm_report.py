"""What the planner predicts against what vLLM reports, within 2 %: the demo model, on the device that is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from xpu_moe.plan.checkpoint import read
from xpu_moe.plan.memory import kv_tokens
from xpu_moe.plan.shapes import shapes_of
from xpu_moe.plan.weights import weights

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
KV_BYTES = 64 << 20


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """(model folder, vLLM's figures, the tokens of its log line)."""
    model = tmp_path_factory.mktemp("demo") / "model"
    made = [sys.executable, "-m", "xpu_moe.demo", str(model), "--quant", "none"]
    subprocess.run(made, check=True, capture_output=True, timeout=300)
    environ = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
               "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # fmt: skip
    environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    child = [sys.executable, str(Path(__file__).parent / "vllm_child.py"), str(model), str(KV_BYTES)]
    ended = subprocess.run(child, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    figures = json.loads([line for line in ended.stdout.splitlines() if line.startswith("{")][-1])
    said = re.search(r"KV cache size: ([\d,]+) tokens", ended.stdout + ended.stderr)
    return model, figures, int(said.group(1).replace(",", "")) if said else None


def test_kv_tokens(report):
    model, figures, logged = report
    shapes = shapes_of(read(model).config)
    predicted = kv_tokens(KV_BYTES, shapes.kv_bytes_per_token(1), figures["block_size"])
    assert predicted == pytest.approx(figures["blocks"] * figures["block_size"], rel=0.02)
    assert logged is None or predicted == pytest.approx(logged, rel=0.02)


def test_weights(report):
    """vLLM's CPU backend packs plain linear layers (attention, router) away from the module's parameters."""
    model, figures, _ = report
    found = read(model)
    shapes = shapes_of(found.config)
    for predicted in (weights(found, shapes, 1).parts, shapes.weights_per_rank(1)):
        packed = predicted.attention + predicted.router if figures["device"] == "cpu" else 0
        kept = predicted.total - packed
        assert kept == pytest.approx(figures["weights_bytes"], rel=0.02)
