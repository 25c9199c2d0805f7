"""Prefill on Intel GPUs by vllm-xpu-kernels' grouped GEMM, on the very storage that our decode kernels read.

The GEMM reads N-major s4 (value = two's complement nibble), which is our canonical layout XOR 0x88. Left to itself the
package turns u4 into s4 at its first call, into a second copy of the layer, and replaces the tensors' storage. Here the
nibbles are converted in place once at load, and the package is told so by the mark that it sets itself. Whether this
release of it really reads that layout is not assumed: a tiny layer is given to it unmarked, and what it turns it into
must be what we hold.

The GEMM reads scales in the activations' dtype. fp16 activations use our fp16 scales as they are; for bf16 they are
rounded into a buffer that all layers share, at each call (3 % of the layer's bytes), so that decode keeps all bits and
no second copy stays.

Names and conventions: XpuFusedMoe in vllm_xpu_kernels/fused_moe_interface.py, as vLLM 0.26 and 0.32 call it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from xpu_moe.formats.int4 import FLIP, Int4MoeWeights
from xpu_moe.ops.contract import Case, Support
from xpu_moe.serving import workspace
from xpu_moe.serving.choice import Stock

NAME = "vllm_xpu_kernels"
_INTERFACE = "vllm_xpu_kernels.fused_moe_interface"
_MARK = "xpu_fused_moe"
_ACTIVATIONS = ("silu", "relu2_no_mul")
_GROUPS = (32, 64, 128)


def stock(device: torch.device) -> Stock:
    """The stock prefill of an XPU, for `choice.choose`."""
    return Stock(NAME, "n_major", "s4", lambda case: support(case, device))


def support(case: Case, device: torch.device) -> Support:
    """Whether the package's grouped GEMM serves the case on canonical s4 weights."""
    if case.activation not in _ACTIVATIONS:
        return Support(False, f"activation {case.activation}: it has {', '.join(_ACTIVATIONS)}")
    if case.dtype not in ("float16", "bfloat16"):
        return Support(False, f"activations in {case.dtype}: it has float16 and bfloat16")
    if case.group_size not in _GROUPS:
        return Support(False, f"group_size {case.group_size}: it has {', '.join(map(str, _GROUPS))}")
    try:
        _, reason = _convention(device)
    except Exception as error:
        return Support(False, f"{NAME}: {type(error).__name__}: {error}")
    if reason:
        return Support(False, reason)
    rounded = "; scales rounded to bfloat16, --dtype float16 keeps all bits" if case.dtype == "bfloat16" else ""
    return Support(True, f"grouped GEMM on the decode kernels' storage{rounded}")


class Prefill:
    """The grouped GEMM bound to one layer's weights (canonical, s4)."""

    def __init__(self, weights: Int4MoeWeights, top_k: int, activation: str, dtype: torch.dtype) -> None:
        if (weights.layout, weights.nibble) != ("n_major", "s4"):
            raise ValueError(f"weights: got layout {weights.layout} {weights.nibble}, wanted n_major s4")
        kernel_dtype, reason = _convention(weights.w13.device)
        if reason:
            raise RuntimeError(reason)
        self._scales = (weights.w13_scale, weights.w2_scale)
        self._rounded = self._scales if weights.w13_scale.dtype == dtype else _rounding_buffers(self._scales, dtype)
        w13, w2 = weights.w13.view(torch.uint8), weights.w2.view(torch.uint8)
        self._kernels = _build(w13, w2, self._rounded, top_k, activation, marked=True)
        self._kernels.w13, self._kernels.w2 = w13.view(kernel_dtype), w2.view(kernel_dtype)

    def run(self, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor) -> torch.Tensor:
        """x [M, H], topk_weights float32 and topk_ids [M, top_k] -> [M, H], the rank's partial sum."""
        if self._rounded is not self._scales:
            for rounded, kept in zip(self._rounded, self._scales):
                rounded.copy_(kept)
        out = torch.empty_like(x)
        self._kernels.apply(output=out, hidden_states=x, topk_weights=topk_weights, topk_ids=topk_ids)
        return out


def _rounding_buffers(scales: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    sizes = [scale.numel() for scale in scales]
    flat = workspace.shared(sum(sizes), scales[0].device, dtype)
    return tuple(part.view(scale.shape) for part, scale in zip(flat.split(sizes), scales))


def _build(w13, w2, scales: Sequence[torch.Tensor], top_k: int, activation: str, marked: bool) -> Any:
    kind = importlib.import_module(_INTERFACE).XpuFusedMoe
    if marked:
        setattr(w13, _MARK, True)
    arguments = {
        "w13": w13, "w13_scales": scales[0], "w13_bias": None, "w2": w2, "w2_scales": scales[1], "w2_bias": None,
        "n_experts_per_token": top_k, "activation": activation, "num_experts": w13.shape[0],
    }  # fmt: skip
    if "is_int4" in inspect.signature(kind.__init__).parameters:
        arguments["is_int4"] = True
    return kind(**arguments)


@cache
def _convention(device: torch.device) -> tuple[torch.dtype, str]:
    """(dtype in which the package hands INT4 weights to its GEMM, why its layout is not ours or "").

    Builds a layer of 2 experts, I = 32, H = 64, group 32, that holds every byte value; launches nothing.
    """
    try:
        importlib.import_module(_INTERFACE)
    except ImportError as error:
        return torch.uint8, f"{NAME} does not import: {error}"
    operators = getattr(torch.ops, "_xpu_C", None)
    generations = [name for name in ("is_xe2_arch", "is_xe3_arch") if hasattr(operators, name)]
    if generations and not any(getattr(operators, name)() for name in generations):
        return torch.uint8, f"{NAME}: its grouped GEMM is for Xe2 and Xe3, this is another Intel GPU"
    w13 = torch.arange(2 * 64 * 32, device=device).remainder(256).to(torch.uint8).view(2, 64, 32)
    w2 = torch.arange(2 * 64 * 16, device=device).remainder(251).to(torch.uint8).view(2, 64, 16)
    scales = [torch.rand(2, 64, groups, device=device).half() for groups in (2, 1)]
    held = [w13 ^ FLIP, w2 ^ FLIP, *(scale.clone() for scale in scales)]
    built = _build(w13, w2, scales, top_k=1, activation="silu", marked=False)
    got = [built.w13, built.w2, *scales]
    if not hasattr(w13, _MARK):
        return torch.uint8, f"{NAME}: this release sets no mark {_MARK!r} on converted weights, layout unknown"
    for name, theirs, ours in zip(("w13", "w2", "w13_scale", "w2_scale"), got, held):
        same = theirs.shape == ours.shape and theirs.is_contiguous() and theirs.element_size() == ours.element_size()
        if not (same and torch.equal(theirs.view(torch.uint8), ours.view(torch.uint8))):
            return torch.uint8, f"{NAME}: this release turns {name} into another layout than N-major s4"
    if built.w13.dtype not in (torch.uint8, torch.int8):
        return torch.uint8, f"{NAME}: this release hands INT4 weights to its GEMM as {built.w13.dtype}"
    return built.w13.dtype, ""
