"""Compiles the halves of the Q/K norm for NVIDIA cards without one. Run by test_kernels.py with Triton 3.6."""

from __future__ import annotations

from triton import compile as build
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from xpu_moe.triton import rms, rms_kernels

WIDTHS = {"Q_SIZE": 3072, "K_SIZE": 512}  # MiniMax-M2 on two ranks
STRIDES = ("stride_qkv", "stride_sums", "stride_q", "stride_k")


def compiled(kernel, arch: int, dtype: str):
    """As a call with 16-byte aligned tensors, rows that are multiples of 16, and adjacent sums specialises it."""
    blocks = rms.blocks(*WIDTHS.values())
    warps = blocks.pop("num_warps")
    fixed = {**WIDTHS, **blocks, "WORLD": 2, "stride_column": 1}
    signature, aligned = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in fixed:
            signature[name] = "constexpr"
        elif name == "eps":
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if name in STRIDES else "*fp32" if name == "sums" else f"*{dtype}"
            aligned[(place,)] = [["tt.divisibility", 16]]
    used = {name: value for name, value in fixed.items() if name in signature}
    source = ASTSource(kernel, signature, used, aligned)
    return build(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps})


if __name__ == "__main__":
    for arch in (80, 90):
        for dtype in ("fp32", "bf16", "fp16"):
            for kernel in (rms_kernels.partial, rms_kernels.apply):
                made = compiled(kernel, arch, dtype)
                loads = [line for line in made.asm["ptx"].splitlines() if "ld.global" in line]
                wide = sum(".v4." in line for line in loads)
                # what is left is the two sums, and a half-filled vector of weights or of K
                assert made.asm["cubin"] and 2 * wide >= len(loads) > 0, (arch, dtype, kernel, loads)
                print(f"sm_{arch} {dtype} {made.metadata.name}: wide loads, one launch")
