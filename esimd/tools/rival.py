"""The estimate for llm-scaler's WS kernels: their design compiled by the same compiler, counted by the same formula."""

from __future__ import annotations

from pathlib import Path

from xpu_moe.esimd.tools import isa, spirv

HEADER = Path(__file__).with_name("rival.hpp")

_ENTRIES = """
using xpu_moe::half;
XPU_MOE_KERNEL void rival_up(
    const half* x, const uint8_t* w13, const half* scale, const int* ids, half* hidden, int hidden_size, int inter) {
  xpu_moe::rival::up(x, w13, scale, ids, hidden, hidden_size, inter);
}
XPU_MOE_KERNEL void rival_down(
    const half* hidden, const uint8_t* w2, const half* scale, const int* ids, const half* weights, half* out,
    int hidden_size, int inter, int top_k) {
  xpu_moe::rival::down(hidden, w2, scale, ids, weights, out, hidden_size, inter, top_k);
}
"""


def threads(tokens: int, hidden_size: int, intermediate_size: int, top_k: int) -> dict[str, int]:
    """Hardware threads of its launches at M <= 2 (N_TILE 2, H_TILE 4)."""
    return {"up": tokens * top_k * intermediate_size // 2, "down": tokens * hidden_size // 4}


def report(device: str = "pvc") -> dict[str, isa.Kernel]:
    """{"up", "down"}: the machine code of the reconstruction."""
    compiled = spirv.compile_text(HEADER.read_text(encoding="utf-8").replace("#pragma once", "") + _ENTRIES)
    kernels = isa.report(compiled.spirv, device).kernels
    return {name: kernels[f"{spirv.KERNEL_PREFIX}rival_{name}"] for name in ("up", "down")}
