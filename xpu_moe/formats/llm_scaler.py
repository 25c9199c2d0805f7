"""Layouts of Intel's llm-scaler -> canonical.

Its work-sharing kernels read N-major s4 bytes: canonical but for the nibble kind. An older build stored K-major int32
[E, K/8, N] with the nibbles of a word in the order 0, 2, 4, 6, 1, 3, 5, 7.
"""

from __future__ import annotations

import torch

from xpu_moe.formats.gptq import rows_from_qweight
from xpu_moe.formats.int4 import Int4MoeWeights

# nibble position p of an old word holds k = _OLD_ORDER[p]
_OLD_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def from_n_major_s4(
    w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor, group_size: int = 128
) -> Int4MoeWeights:
    """The tensors as they are, marked s4 (no copy). Raises UnsupportedCheckpoint for shapes that do not fit."""
    return Int4MoeWeights(w13, w13_scale, w2, w2_scale, "s4", group_size)


def rows_from_k_major(words: torch.Tensor) -> torch.Tensor:
    """int32 [K/8, N] of the older build -> uint8 [N, K/2], low nibble = even k; the nibble kind stays."""
    ordered = torch.zeros_like(words)
    for position, k in enumerate(_OLD_ORDER):
        ordered |= ((words >> (4 * position)) & 15) << (4 * k)
    return rows_from_qweight(ordered)
