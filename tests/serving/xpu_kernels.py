"""A stand-in for vllm-xpu-kernels on the CPU: the same interface and conventions, and it records what it is given.

What it enforces is what the package's C++ does not check and would read wrongly: the dtype that marks INT4 weights, and
scales in the activations' dtype.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType

import torch

from xpu_moe.cpu.moe_u4 import reference

STYLES = {"0.1.10": torch.uint8, "0.1.16": torch.int8}


@dataclass
class Recorded:
    """Addresses of the tensors of every call, and how many layers were built."""

    weights: list[tuple[int, int]] = field(default_factory=list)
    scales: list[tuple[int, int]] = field(default_factory=list)
    conversions: int = 0
    built: int = 0


def install(monkeypatch, style: str) -> Recorded:
    """Put the package into sys.modules. `style`: a key of STYLES, "transposing", "unmarked" or "k_major"."""
    recorded = Recorded()
    package, interface = ModuleType("vllm_xpu_kernels"), ModuleType("vllm_xpu_kernels.fused_moe_interface")
    interface.XpuFusedMoe = _fused_moe(style, recorded)
    package.fused_moe_interface = interface
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    return recorded


def _fused_moe(style: str, recorded: Recorded) -> type:
    kernel_dtype = STYLES.get(style, torch.int8)

    class XpuFusedMoe:
        def __init__(
            self, w13, w13_scales, w13_bias, w2, w2_scales, w2_bias, n_experts_per_token, activation, num_experts,
            ep_rank=0, ep_size=1, expert_map=None, gemm1_clamp_limit=None,
        ):  # fmt: skip
            assert w13.is_contiguous() and w2.is_contiguous() and w13.dtype == torch.uint8
            if not hasattr(w13, "xpu_fused_moe"):
                recorded.conversions += 1
                for tensor in (w13, w2):
                    turned = (tensor ^ 0x88).view(kernel_dtype)
                    tensor.data = turned.transpose(1, 2).contiguous() if style == "transposing" else turned
                if style != "unmarked":
                    w13.xpu_fused_moe = True
            recorded.built += 1
            self.w13, self.w2, self.scales = w13, w2, (w13_scales, w2_scales)
            self.activation = activation

        def apply(self, output, hidden_states, topk_weights, topk_ids, expert_map=None, a1q_scale=None):
            assert self.w13.dtype == self.w2.dtype == kernel_dtype, "INT4 weights are told by their dtype"
            assert all(scale.dtype == hidden_states.dtype for scale in self.scales), "read in the activations' dtype"
            recorded.weights.append((self.w13.data_ptr(), self.w2.data_ptr()))
            recorded.scales.append(tuple(scale.data_ptr() for scale in self.scales))
            group = 2 * self.w13.shape[2] // self.scales[0].shape[2]
            output.copy_(
                reference(
                    hidden_states, self.w13.view(torch.uint8), self.scales[0], self.w2.view(torch.uint8),
                    self.scales[1], topk_weights, topk_ids, nibble="s4", group_size=group, activation=self.activation,
                )
            )  # fmt: skip

    return XpuFusedMoe
