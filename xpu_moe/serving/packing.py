"""Pieces of the GPTQ packing that both layer kinds need: what a symmetric zero looks like, and plain dequantisation."""

from __future__ import annotations

import torch

from xpu_moe.formats import gptq
from xpu_moe.formats.gptq import rows_from_qweight

PER_WORD = 8  # nibbles in an int32


def symmetric_zeros(shape: tuple[int, ...], zero_point: int) -> torch.Tensor:
    """int32 tensor (default device) whose every nibble is `zero_point` (0..15)."""
    word = int.from_bytes(bytes([zero_point * 0x11] * 4), "little", signed=True)
    return torch.full(shape, word, dtype=torch.int32)


def plain_order(depth: int, group_size: int) -> torch.Tensor:
    """int32 [depth], k // group_size: a g_idx without reordering."""
    return (torch.arange(depth) // group_size).to(torch.int32)


def check_order(name: str, order: torch.Tensor, group_size: int) -> None:
    """Refuse desc_act in a rank's shard, which may start at a later group. Raises UnsupportedCheckpoint."""
    gptq.check_order(name, order - order.min(), group_size)


def dense(qweight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """qweight int32 [K/8, N] (u4), scales [K/group, N] -> float32 [N, K]."""
    rows = rows_from_qweight(qweight)
    codes = torch.stack((rows & 15, rows >> 4), dim=-1).flatten(1).float() - 8
    group = codes.shape[1] // scales.shape[0]
    return codes * scales.t().float().repeat_interleave(group, dim=1)
