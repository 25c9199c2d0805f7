"""Inputs of the kernel tests, and the float64 truth grouped by expert (fast enough for MiniMax's shapes)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from xpu_moe.ops.activation import is_gated


@dataclass(frozen=True)
class Shape:
    """A layer's slice on one rank. `pool`: ids are drawn from so many experts spread over all of them."""

    name: str
    inter: int
    group: int
    hidden: int = 3072
    experts: int = 256
    top_k: int = 8
    pool: int = 256

    def __str__(self) -> str:
        return self.name


TP1 = Shape("TP1-g128", 1536, 128, pool=10)
TP2 = Shape("TP2-g128", 768, 128, pool=12)
TP4 = Shape("TP4-g128", 384, 128, pool=16)
TP8_G64 = Shape("TP8-g64", 192, 64, pool=16)
TP8_G32 = Shape("TP8-g32", 192, 32, pool=16)
# ||out - truth|| / ||truth||
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3}


def inputs(
    shape: Shape, tokens: int, dtype: torch.dtype, *, activation: str = "silu", seed: int = 0,
    weights_dtype: torch.dtype = torch.float32, ids_dtype: torch.dtype = torch.int32,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Arguments of `moe_u4` by name. Only the pool's experts have weights; ids of a token are distinct."""
    draw = torch.Generator().manual_seed(seed)
    rows = shape.inter * (2 if is_gated(activation) else 1)
    pool = torch.randperm(shape.experts, generator=draw)[: shape.pool]

    def weights(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        # numpy's zeros are pages that nobody touched: the experts outside the pool cost nothing
        packed = torch.from_numpy(np.zeros((shape.experts, rows, columns // 2), np.uint8))
        scale = torch.from_numpy(np.zeros((shape.experts, rows, columns // shape.group), np.float16))
        for expert in pool.tolist():
            packed[expert] = torch.randint(0, 256, packed.shape[1:], dtype=torch.uint8, generator=draw)
            scale[expert] = (torch.rand(scale.shape[1:], generator=draw) * 0.02 + 0.001).half()
        return packed, scale

    w13, w13_scale = weights(rows, shape.hidden)
    w2, w2_scale = weights(shape.hidden, shape.inter)
    chosen = torch.stack([torch.randperm(len(pool), generator=draw)[: shape.top_k] for _ in range(tokens)])
    return {
        "x": torch.randn(tokens, shape.hidden, generator=draw).to(dtype),
        "w13": w13,
        "w13_scale": w13_scale,
        "w2": w2,
        "w2_scale": w2_scale,
        "topk_weights": torch.rand(tokens, shape.top_k, generator=draw).to(weights_dtype),
        "topk_ids": pool[chosen].to(ids_dtype),
    }


def truth(
    x: torch.Tensor, w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor,
    topk_weights: torch.Tensor, topk_ids: torch.Tensor, *, nibble: str, group_size: int, activation: str = "silu",
) -> torch.Tensor:  # fmt: skip
    """[M, H] in float64, one expert at a time. A route out of range contributes 0."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for expert in topk_ids.unique().tolist():
        if not 0 <= expert < w13.shape[0]:
            continue
        tokens, slots = (topk_ids == expert).nonzero(as_tuple=True)
        hidden = x[tokens].double() @ _dequantized(w13[expert], w13_scale[expert], nibble, group_size).T
        gate, up = hidden.chunk(2, dim=-1) if is_gated(activation) else (hidden, torch.ones(()))
        active = gate * torch.sigmoid(gate) if activation.startswith("silu") else gate.clamp(min=0) ** 2
        down = (active * up) @ _dequantized(w2[expert], w2_scale[expert], nibble, group_size).T
        out.index_add_(0, tokens, down * topk_weights[tokens, slots].double().unsqueeze(1))
    return out


def _dequantized(packed: torch.Tensor, scale: torch.Tensor, nibble: str, group_size: int) -> torch.Tensor:
    """[N, K] float64, by a table of the 256 bytes."""
    codes = torch.arange(256)
    pairs = torch.stack((codes & 15, codes >> 4), dim=-1)
    table = (pairs - 8 if nibble == "u4" else (pairs ^ 8) - 8).double()
    values = table[packed.int()].view(packed.shape[0], -1, group_size)
    return values.mul_(scale.double().unsqueeze(-1)).view(packed.shape[0], -1)


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """||got - wanted|| / ||wanted||; NaN when got holds one."""
    return float((got.double() - wanted).norm() / wanted.norm().clamp(min=1e-300))
