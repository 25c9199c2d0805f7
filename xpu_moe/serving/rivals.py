"""vLLM's own kernels as rivals of a benchmark: a callable, or the sentence that says why there is none."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch


def route_quant_pair(top_k: int, group_size: int, ue8m0: bool) -> Callable[..., object] | str:
    """vLLM's biased sigmoid top-k followed by its per-token-group quantisation: (x, logits, bias) -> nothing."""
    if importlib.util.find_spec("vllm") is None:
        return "not installed"
    try:
        from vllm.model_executor.layers.fused_moe.router.fused_topk_bias_router import fused_topk_bias
        from vllm.model_executor.layers.quantization.utils.fp8_utils import per_token_group_quant_fp8
    except ImportError as error:
        return f"not in this vLLM: {error}"

    def run(x: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor) -> None:
        fused_topk_bias(x, logits, "sigmoid", bias, topk=top_k, renormalize=True)
        per_token_group_quant_fp8(x, group_size, use_ue8m0=ue8m0)

    return run
