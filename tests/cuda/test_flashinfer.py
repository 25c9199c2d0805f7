"""What the adapter hands to FlashInfer, seen by a stand-in for its module."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest
import torch

from tests.cuda.test_fp8_weights import made
from xpu_moe.cuda import flashinfer
from xpu_moe.ops.contract import Case


@pytest.fixture
def calls(monkeypatch):
    """A module `flashinfer` whose cutlass_fused_moe keeps its arguments."""
    seen: list[dict] = []
    core = types.ModuleType("flashinfer.fused_moe.core")
    core.ActivationType = types.SimpleNamespace(Swiglu=3, Relu2=6)
    fused = types.ModuleType("flashinfer.fused_moe")
    fused.cutlass_fused_moe = lambda **keywords: seen.append(keywords)
    for name, module in (
        ("flashinfer", types.ModuleType("flashinfer")), ("flashinfer.fused_moe", fused),
        ("flashinfer.fused_moe.core", core),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    return seen


@pytest.mark.parametrize("activation, number", (("silu", 3), ("relu2_no_mul", 6)))
def test_per_tensor(calls, activation, number):
    weights = made(activation)
    case = Case("moe_fp8_tensor", "cuda", "sm_90", activation=activation, scheme="fp8_tensor")
    ready = flashinfer.Fp8Tensor().prepare(dataclasses.replace(weights, w13=weights.w13.clone()), case)
    x = torch.randn(3, 32).bfloat16()
    ids = torch.tensor([[0, 1], [-1, 2], [7, 1]])
    out = torch.empty(3, 32, dtype=torch.bfloat16)
    assert flashinfer.Fp8Tensor().run(x, ready, torch.ones(3, 2), ids, out=out) is out
    (given,) = calls
    assert given["activation_type"] == number and given["output"] is out and not given["use_deepseek_fp8_block_scale"]
    assert given["input"].dtype == torch.float8_e4m3fn
    assert torch.equal(given["input"], (x.float() / 0.02).clamp(-448, 448).to(torch.float8_e4m3fn))
    assert given["token_selected_experts"].dtype == torch.int32
    assert given["token_selected_experts"].tolist() == [[0, 1], [0, 2], [0, 1]]
    assert given["token_final_scales"].tolist() == [[1, 1], [0, 1], [0, 1]], "routes out of range keep no weight"
    assert [tuple(scale.shape) for scale in given["quant_scales"]] == [(3,), (), (3,), ()]
    assert given["fc2_expert_weights"].shape[2] % flashinfer.pad_multiple(activation) == 0


def test_block_scales_take_plain_activations(calls):
    x, ids = torch.randn(2, 128).bfloat16(), torch.zeros(2, 1, dtype=torch.int32)
    w13, w2 = torch.zeros(1, 256, 128).to(torch.float8_e4m3fn), torch.zeros(1, 128, 128).to(torch.float8_e4m3fn)
    s13, s2 = torch.ones(1, 2, 1), torch.ones(1, 1, 1)
    out = torch.empty_like(x)
    keywords = {"activation": "silu", "layout": "up_gate", "out": out}
    flashinfer.Fp8Block().run(x, None, w13, s13, w2, s2, torch.ones(2, 1), ids, **keywords)
    (given,) = calls
    assert given["input"] is x and given["use_deepseek_fp8_block_scale"] and len(given["quant_scales"]) == 2
    with pytest.raises(ValueError, match="x_scale: got given, wanted None"):
        flashinfer.Fp8Block().run(x, torch.ones(2, 1), w13, s13, w2, s2, torch.ones(2, 1), ids, **keywords)


def test_a_prebuilt_module_needs_no_compiling(monkeypatch, tmp_path):
    """R15: FLASHINFER_DISABLE_JIT is only a refusal where the module does not lie ready."""
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flashinfer", raising=False)
    monkeypatch.setattr(flashinfer, "installed", lambda: "0.6.13")
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")
    case = Case("moe_fp8_tensor", "cuda", "sm_90", activation="relu2_no_mul", scheme="fp8_tensor")
    assert "not prebuilt" in flashinfer.refusal(case)
    ready = tmp_path / "flashinfer" / "data" / "aot" / "fused_moe_90"
    ready.mkdir(parents=True)
    (ready / "fused_moe_90.so").touch()
    assert flashinfer.refusal(case) == ""
