"""The halves of the Q/K norm as backends: one launch each where plain torch takes a dozen, any M and any widths."""

from __future__ import annotations

import torch

from xpu_moe.ops.contract import Case, Support
from xpu_moe.triton import toolchain

_WIDEST = 4096  # columns that a program holds at a time; a wider row takes several turns


def blocks(q_size: int, kv_size: int) -> dict[str, int]:
    """Columns of Q and K at a time (powers of two), and warps: 8 columns a thread of 32 lanes, 4 to 8 warps."""
    wide, narrow = (min(1 << (size - 1).bit_length(), _WIDEST) for size in (q_size, kv_size))
    return {"BLOCK_Q": wide, "BLOCK_K": narrow, "num_warps": max(4, min(8, max(wide, narrow) // 256))}


class _Half:
    """What both halves share."""

    name = "triton_rms"
    op = ""

    def supports(self, case: Case) -> Support:
        reason = toolchain.refusal(case)
        if reason:
            return Support(False, reason)
        return Support(True, f"Triton {toolchain.triton_version()}, one launch, a program a row")

    def prepare(self, weights, case: Case):
        return weights

    def workspace(self, case: Case) -> int:
        return 0


class Partial(_Half):
    """Sums of squares of Q and K."""

    op = "qk_rms_partial"

    def run(self, qkv: torch.Tensor, *, q_size: int, kv_size: int, out: torch.Tensor) -> None:
        if not qkv.shape[0]:
            return
        from xpu_moe.triton import rms_kernels

        rms_kernels.partial[(qkv.shape[0],)](
            qkv, out, qkv.stride(0), *out.stride(), Q_SIZE=q_size, K_SIZE=kv_size, **blocks(q_size, kv_size)
        )


class Apply(_Half):
    """Scale Q and K by their all-reduced sums."""

    op = "qk_rms_apply"

    def run(
        self, qkv: torch.Tensor, sums: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, *, q_size: int,
        kv_size: int, eps: float, world_size: int, q_out: torch.Tensor, k_out: torch.Tensor,
    ) -> None:  # fmt: skip
        if not qkv.shape[0]:
            return
        from xpu_moe.triton import rms_kernels

        rms_kernels.apply[(qkv.shape[0],)](
            qkv, sums, q_weight.contiguous(), k_weight.contiguous(), q_out, k_out, qkv.stride(0), *sums.stride(),
            q_out.stride(0), k_out.stride(0), float(eps), Q_SIZE=q_size, K_SIZE=kv_size, WORLD=world_size,
            **blocks(q_size, kv_size),
        )  # fmt: skip
