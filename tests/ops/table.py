"""The shared test table of the operators: every backend of every device runs these cases against float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MoeCase:
    tokens: int
    experts: int
    top_k: int
    hidden: int
    inter: int
    group: int
    nibble: str = "u4"
    activation: str = "silu"
    weights_dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        shape = f"M{self.tokens}-E{self.experts}-k{self.top_k}-H{self.hidden}-I{self.inter}-g{self.group}"
        return f"{shape}-{self.nibble}-{self.activation}"


MOE_CASES = (
    MoeCase(1, 8, 2, 256, 128, 64),
    MoeCase(4, 8, 2, 256, 128, 32),
    MoeCase(16, 16, 4, 256, 128, 128, nibble="s4"),
    MoeCase(64, 8, 8, 128, 64, 64, activation="relu2"),
    MoeCase(3, 4, 1, 128, 128, 128, activation="relu2_no_mul"),
    MoeCase(0, 4, 2, 128, 64, 32),
)

# ||out - truth|| / ||truth||
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def moe_inputs(case: MoeCase, dtype: torch.dtype, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random arguments of `moe_u4`, by name, on the CPU."""
    draw = torch.Generator().manual_seed(seed)
    rows = case.inter * (1 if case.activation.endswith("no_mul") else 2)

    def nibbles(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)

    def scales(*shape: int) -> torch.Tensor:
        return (torch.rand(shape, generator=draw) * 0.02 + 0.001).half()

    return {
        "x": torch.randn(case.tokens, case.hidden, generator=draw).to(dtype),
        "w13": nibbles(case.experts, rows, case.hidden // 2),
        "w13_scale": scales(case.experts, rows, case.hidden // case.group),
        "w2": nibbles(case.experts, case.hidden, case.inter // 2),
        "w2_scale": scales(case.experts, case.hidden, case.inter // case.group),
        "topk_weights": torch.rand(case.tokens, case.top_k, generator=draw).to(case.weights_dtype),
        "topk_ids": torch.randint(0, case.experts, (case.tokens, case.top_k), dtype=torch.int32, generator=draw),
    }


def relative_error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """||got - truth|| / ||truth||, in float64; 0 for two empty tensors, NaN when got holds one."""
    if truth.numel() == 0:
        return 0.0 if got.numel() == 0 else float("inf")
    return float((got.double().cpu() - truth).norm() / truth.norm().clamp(min=1e-300))
