"""Q/K RMS norm in plain torch, float32, and the float64 truth over all ranks; `ops/qk_rms.py` states the semantics."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xpu_moe.cpu.plain import Plain
from xpu_moe.ops.contract import Case, Support


class Partial(Plain):
    """Sums of squares of Q and K."""

    op = "qk_rms_partial"

    def __init__(self, name: str) -> None:
        self.name = name

    def supports(self, case: Case) -> Support:
        return Support(True, "plain torch in float32")

    def run(self, qkv, *, q_size, kv_size, out):
        squares = qkv[:, : q_size + kv_size].float().square()
        torch.sum(squares[:, :q_size], dim=1, out=out[:, 0])
        torch.sum(squares[:, q_size:], dim=1, out=out[:, 1])


class Apply(Plain):
    """Scale Q and K by their all-reduced sums."""

    op = "qk_rms_apply"

    def __init__(self, name: str) -> None:
        self.name = name

    def supports(self, case: Case) -> Support:
        return Support(True, "plain torch in float32")

    def run(self, qkv, sums, q_weight, k_weight, *, q_size, kv_size, eps, world_size, q_out, k_out):
        q, k = qkv[:, :q_size], qkv[:, q_size : q_size + kv_size]
        for column, (part, weight, out) in enumerate(((q, q_weight, q_out), (k, k_weight, k_out))):
            scale = torch.rsqrt(sums[:, column : column + 1] / (part.shape[1] * world_size) + eps)
            out.copy_(part.float() * scale * weight.float())


def reference(
    shards: Sequence[torch.Tensor], q_weights: Sequence[torch.Tensor], k_weights: Sequence[torch.Tensor],
    q_size: int, kv_size: int, eps: float,
) -> list[tuple[torch.Tensor, torch.Tensor]]:  # fmt: skip
    """The float64 truth of every rank, from the packed qkv of all ranks: it joins the heads and norms them once."""

    def norm(parts: list[torch.Tensor], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        whole = torch.cat([part.cpu().double() for part in parts], dim=1)
        normed = whole / (whole.square().mean(dim=1, keepdim=True) + eps).sqrt()
        scaled = normed * torch.cat([weight.cpu().double() for weight in weights])
        return list(scaled.split(parts[0].shape[1], dim=1))

    q = norm([shard[:, :q_size] for shard in shards], q_weights)
    k = norm([shard[:, q_size : q_size + kv_size] for shard in shards], k_weights)
    return list(zip(q, k))
