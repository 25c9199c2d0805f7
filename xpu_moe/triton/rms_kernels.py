"""Both halves of the Q/K norm, a program a row; `ops/qk_rms.py` states the semantics. Needs Triton.

The number of rows is the grid and no argument, so one compiled kernel serves every M of a model.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def partial(
    qkv, sums, stride_qkv, stride_sums, stride_column, Q_SIZE: tl.constexpr, K_SIZE: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """sums[m] = (sum of q[m]^2, sum of k[m]^2) in float32. Grid (M,)."""
    m = tl.program_id(0).to(tl.int64)
    row = qkv + m * stride_qkv
    out = sums + m * stride_sums
    tl.store(out, _squares(row, Q_SIZE, BLOCK_Q))
    tl.store(out + stride_column, _squares(row + Q_SIZE, K_SIZE, BLOCK_K))


@triton.jit
def apply(
    qkv, sums, q_weight, k_weight, q_out, k_out, stride_qkv, stride_sums, stride_column, stride_q, stride_k, eps,
    Q_SIZE: tl.constexpr, K_SIZE: tl.constexpr, WORLD: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """q_out[m], k_out[m]: scaled by the sums over all ranks and by the weights; they may be qkv's own. Grid (M,)."""
    m = tl.program_id(0).to(tl.int64)
    row = qkv + m * stride_qkv
    both = sums + m * stride_sums
    q_scale = tl.rsqrt(tl.load(both) / (Q_SIZE * WORLD) + eps)
    k_scale = tl.rsqrt(tl.load(both + stride_column) / (K_SIZE * WORLD) + eps)
    _scale(row, q_weight, q_scale, q_out + m * stride_q, Q_SIZE, BLOCK_Q)
    _scale(row + Q_SIZE, k_weight, k_scale, k_out + m * stride_k, K_SIZE, BLOCK_K)


@triton.jit
def _squares(x, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SIZE, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(x + column, mask=column < SIZE, other=0.0).to(tl.float32)
        total += value * value
    return tl.sum(total, 0)


@triton.jit
def _scale(x, weight, scale, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    for first in range(0, SIZE, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.load(x + column, mask=column < SIZE, other=0.0).to(tl.float32)
        factor = tl.load(weight + column, mask=column < SIZE, other=0.0).to(tl.float32)
        tl.store(out + column, (value * scale * factor).to(out.dtype.element_ty), mask=column < SIZE)
