"""vLLM's MoE chains as rivals of a benchmark: a callable, or the sentence that says why there is none.

Their weights are random in the kernels' own packing: a rival's time does not depend on the values.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]  # (x, topk_weights, topk_ids)


def _missing() -> str:
    if importlib.util.find_spec("vllm") is None:
        return "not installed"
    if not torch.cuda.is_available():
        return "needs an NVIDIA card"
    return ""


def marlin_int4(
    num_experts: int, hidden_size: int, intermediate_size: int, group_size: int, sets: int
) -> list[Run] | str:
    """vLLM's Marlin chain (align, two products, activation, sum), gated silu: one callable a set of weights."""
    reason = _missing()
    if reason:
        return reason
    try:
        try:
            from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
        except ImportError:
            from vllm.model_executor.layers.fused_moe.fused_marlin_moe import fused_marlin_moe
        from vllm.scalar_type import scalar_types
    except ImportError as error:
        return f"not in this vLLM: {error}"

    def one() -> Run:
        rows = 2 * intermediate_size
        w13 = _random(num_experts, hidden_size // 16, rows * 2)
        w2 = _random(num_experts, intermediate_size // 16, hidden_size * 2)
        s13 = torch.rand(num_experts, hidden_size // group_size, rows, device="cuda").mul_(0.01).bfloat16()
        s2 = torch.rand(num_experts, intermediate_size // group_size, hidden_size, device="cuda").mul_(0.01).bfloat16()
        kind = scalar_types.uint4b8.id
        return lambda x, weights, ids: fused_marlin_moe(
            x, w13, w2, None, None, s13, s2, weights, ids, quant_type_id=kind, global_num_experts=num_experts
        )

    return [one() for _ in range(sets)]


def triton_fp8_block(
    weights: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]], num_experts: int
) -> list[Run] | str:
    """vLLM's Triton chain on (w13, w13_scale, w2, w2_scale), 128 x 128 scales, from bf16 activations."""
    reason = _missing()
    if reason:
        return reason
    try:
        from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
        from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts
    except ImportError as error:
        return f"not in this vLLM: {error}"

    def one(w13, s13, w2, s2) -> Run:
        config = fp8_w8a8_moe_quant_config(s13, s2, block_shape=[128, 128])
        return lambda x, route_weights, ids: fused_experts(
            x, w13, w2, route_weights, ids, global_num_experts=num_experts, quant_config=config
        )

    return [one(*layer) for layer in weights]


def _random(*shape: int) -> torch.Tensor:
    return torch.randint(-(1 << 31), (1 << 31) - 1, shape, dtype=torch.int32, device="cuda")
