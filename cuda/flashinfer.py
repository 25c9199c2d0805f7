"""FlashInfer's CUTLASS mixture of experts: FP8 per tensor and FP8 block, gated silu and relu2 without a gate.

Nothing is imported before `supports` says yes. What FlashInfer lacks here (not installed, its module not built and
compiling disabled, another architecture) is a reason, never an ImportError in a call. Facts about its arguments:
FlashInfer 0.6.13, `fused_moe/core.py`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from xpu_moe.cuda import selection
from xpu_moe.env import read
from xpu_moe.ops import checks
from xpu_moe.ops.activation import is_gated
from xpu_moe.ops.contract import Case, Support
from xpu_moe.ops.moe_fp8_tensor import Fp8TensorWeights, padded, swap_halves, swapped

LAYOUT = "up_gate"
OLDEST = (0, 5)  # the first with relu2 (vLLM #27261)
ARCHITECTURES = ("sm_90",)
# ours -> FlashInfer's ActivationType. Gated: [up; gate] in fc1; not gated: [E, I, H].
ACTIVATIONS = {"silu": "Swiglu", "relu2_no_mul": "Relu2"}
LEAST_BLOCK_SCALE = 1e-10  # scales of dead experts nearer to 0 become NaN on sm_90


def pad_multiple(activation: str) -> int:
    """What I is rounded up to for per-tensor FP8: 16 gated, 128 not gated (vLLM's weight preparation)."""
    return 16 if is_gated(activation) else 128


@cache
def installed() -> str:
    """FlashInfer's version, "" where it is not installed."""
    if importlib.util.find_spec("flashinfer") is None:
        return ""
    try:
        return importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def prebuilt() -> bool:
    """Whether the fused_moe_90 module lies where FlashInfer loads it without compiling."""
    spec = importlib.util.find_spec("flashinfer")
    roots = (spec.submodule_search_locations or ()) if spec else ()
    return any((Path(root) / "data" / "aot" / "fused_moe_90" / "fused_moe_90.so").exists() for root in roots)


def refusal(case: Case) -> str:
    """Why FlashInfer cannot serve a case, "" where it can. Answers without a GPU."""
    version = installed()
    if not version:
        return "FlashInfer is not installed (flashinfer-python==0.6.13 and apache-tvm-ffi)"
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        return f"FlashInfer {version}: wanted {'.'.join(map(str, OLDEST))} or later"
    if case.architecture not in ARCHITECTURES:
        return f"architecture {case.architecture or 'unknown'!r}: FP8 CUTLASS is used on {' and '.join(ARCHITECTURES)}"
    if case.activation not in ACTIVATIONS:
        return f"activation {case.activation!r}: FlashInfer has {' and '.join(ACTIVATIONS)}"
    if case.dtype != "bfloat16":
        return f"dtype {case.dtype}: the module is built for bfloat16 output"
    if case.prepared:
        return "prepared: True; its block path quantises the activations itself"
    if read.flag("FLASHINFER_DISABLE_JIT") and not prebuilt():
        return "FLASHINFER_DISABLE_JIT is set and fused_moe_90 is not prebuilt"
    if case.layout != LAYOUT and is_gated(case.activation):
        return f"layout {case.layout!r}: gated weights are read as {LAYOUT} (`prepare` swaps the halves in place)"
    return ""


class _Cutlass:
    name = selection.CUTLASS
    op = ""
    layout = LAYOUT

    def supports(self, case: Case) -> Support:
        reason = refusal(case) or self._sizes(case)
        if reason:
            return Support(False, reason)
        return Support(True, selection.why(case, self.name) or f"FlashInfer {installed()} cutlass_fused_moe")

    def rank(self, case: Case) -> int:
        return selection.rank(case, self.name)

    def _sizes(self, case: Case) -> str:
        return ""

    def workspace(self, case: Case) -> int:
        """FlashInfer takes its own from torch's allocator."""
        return 0


class Fp8Block(_Cutlass):
    """128 x 128 scales; call each shape once before capturing a graph (its GEMMs are compiled by shape)."""

    op = "moe_fp8_block"

    def _sizes(self, case: Case) -> str:
        for field, size in (("hidden_size", case.hidden_size), ("intermediate_size", case.intermediate_size)):
            if size % 128:
                return f"{field} {size}: wanted a multiple of the scale block, 128"
        return ""

    def prepare(self, weights: Any, case: Case) -> Any:
        """[gate; up] -> [up; gate] with the scales, in place; scales no nearer to 0 than LEAST_BLOCK_SCALE.

        `weights` is a dataclass with w13, w13_scale, w2, w2_scale and layout.
        """
        if weights.layout == LAYOUT:
            return weights
        if is_gated(case.activation):
            swap_halves(weights.w13)
            swap_halves(weights.w13_scale)
        weights.w13_scale.clamp_(min=LEAST_BLOCK_SCALE)
        weights.w2_scale.clamp_(min=LEAST_BLOCK_SCALE)
        return replace(weights, layout=LAYOUT)

    def run(
        self, x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, activation, layout, out,
        workspace=None,
    ):  # fmt: skip
        checks.require(x_scale is None, "x_scale", "given", "None: FlashInfer quantises by itself")
        return _call(x, topk_weights, topk_ids, w13, w2, [w13_scale, w2_scale], activation, out, block=True)


class Fp8Tensor(_Cutlass):
    """One scale an expert, static activation scales."""

    op = "moe_fp8_tensor"

    def _sizes(self, case: Case) -> str:
        wanted = pad_multiple(case.activation)
        if case.intermediate_size % wanted:
            return f"intermediate_size {case.intermediate_size}: wanted a multiple of {wanted} (`prepare` pads)"
        return f"hidden_size {case.hidden_size}: wanted a multiple of 16" if case.hidden_size % 16 else ""

    def prepare(self, weights: Fp8TensorWeights, case: Case) -> Fp8TensorWeights:
        """Pad I, then [gate; up] -> [up; gate]."""
        if weights.layout == LAYOUT:
            return weights
        return swapped(padded(weights, pad_multiple(weights.activation)))

    def run(self, x, weights: Fp8TensorWeights, topk_weights, topk_ids, *, out, workspace=None):
        quantised = (x.float() / weights.a1_scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        scales = quant_scales(weights)
        return _call(quantised, topk_weights, topk_ids, weights.w13, weights.w2, scales, weights.activation, out)


def quant_scales(weights: Fp8TensorWeights) -> list[torch.Tensor]:
    """The four scales of cutlass_fused_moe: fc1_dequant [E], fc2_quant [], fc2_dequant [E], a1_scale []."""
    derived = weights.parameters()
    return [derived["g1_alphas"], derived["a2_inverse"], derived["g2_alphas"], weights.a1_scale]


def _call(x, topk_weights, topk_ids, w13, w2, scales, activation: str, out, block: bool = False):
    from flashinfer.fused_moe import cutlass_fused_moe
    from flashinfer.fused_moe.core import ActivationType

    ids = topk_ids.to(torch.int32)
    valid = (ids >= 0) & (ids < w2.shape[0])  # FlashInfer reads whatever it is given
    cutlass_fused_moe(
        input=x,
        token_selected_experts=torch.where(valid, ids, 0).contiguous(),
        token_final_scales=torch.where(valid, topk_weights.float(), 0.0).contiguous(),
        fc1_expert_weights=w13,
        fc2_expert_weights=w2,
        output_dtype=out.dtype,
        quant_scales=[scale.contiguous() for scale in scales],
        output=out,
        activation_type=getattr(ActivationType, ACTIVATIONS[activation]),
        use_deepseek_fp8_block_scale=block,
    )
    return out
