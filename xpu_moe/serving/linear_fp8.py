"""Block-scaled FP8 linears (q, k, v, o) on a CPU, where vLLM's need AMX: dequantised once, after loading."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase
from vllm.model_executor.layers.quantization.utils.fp8_utils import (
    create_fp8_scale_parameter,
    create_fp8_weight_parameter,
)
from vllm.model_executor.parameter import BlockQuantScaleParameter

from xpu_moe.serving import compat, tell
from xpu_moe.serving.report import Layer


class DequantizedFp8Linear(LinearMethodBase):
    """e4m3 with a scale a block, which becomes a dense linear when its weights are there."""

    def __init__(self, block: list[int], prefix: str) -> None:
        self.block, self.prefix = block, prefix

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **attributes: Any,
    ) -> None:
        """Every shard must be whole blocks. Raises ValueError."""
        for size in (input_size_per_partition, *output_partition_sizes):
            if size % self.block[0]:
                raise ValueError(
                    f"{self.prefix}: a shard of {size}, wanted a multiple of the scale block {self.block[0]}"
                )
        loader = attributes.get("weight_loader")
        self.dtype = params_dtype
        layer.logical_widths = output_partition_sizes
        layer.weight_block_size = self.block  # vLLM's loader of the scales reads it
        width = sum(output_partition_sizes)
        layer.register_parameter("weight", create_fp8_weight_parameter(width, input_size_per_partition, loader))
        scale = create_fp8_scale_parameter(
            BlockQuantScaleParameter, output_partition_sizes, input_size_per_partition, self.block, loader
        )
        layer.register_parameter("weight_scale_inv", scale)

    def process_weights_after_loading(self, layer: Any) -> None:
        weight, scale = layer.weight.data, layer.weight_scale_inv.data
        wide = scale.repeat_interleave(self.block[0], 0).repeat_interleave(self.block[1], 1)
        loaded = weight.numel() + 4 * scale.numel()
        dense = (weight.float() * wide).to(self.dtype)
        for name in ("weight", "weight_scale_inv"):
            layer._parameters.pop(name)
        layer.register_parameter("weight", torch.nn.Parameter(dense, requires_grad=False))
        tell.layer(
            Layer(
                kind="linear_fp8",
                case=f"N{dense.shape[0]} K{dense.shape[1]} {self.dtype} on {compat.device_kind()}",
                backend="dequantized",
                reason="an FP8 linear of the CPU needs AMX in vLLM: dense once, after loading",
                bytes_loaded=loaded,
                bytes_kept=dense.numel() * dense.element_size(),
                first=self.prefix,
            )
        )

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)
