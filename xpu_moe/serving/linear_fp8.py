"""Block-scaled FP8 linears (q, k, v, o) on a CPU, where vLLM's need AMX: dequantised once, after loading."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.quantization.utils.fp8_utils import (
    create_fp8_scale_parameter,
    create_fp8_weight_parameter,
)
from vllm.model_executor.parameter import BlockQuantScaleParameter

from xpu_moe.serving.arrivals import check_finite
from xpu_moe.serving.linear_dense import DenseAfterLoading


class DequantizedFp8Linear(DenseAfterLoading):
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
        scale.data.fill_(torch.nan)  # what the checkpoint brings none of; vLLM's own mark is a finite number
        layer.register_parameter("weight_scale_inv", scale)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Raises UnsupportedCheckpoint for scales that are missing or no numbers."""
        check_finite(f"{self.prefix}.weight_scale_inv", layer.weight_scale_inv.data)
        weight, scale = layer.weight.data, layer.weight_scale_inv.data
        wide = scale.repeat_interleave(self.block[0], 0).repeat_interleave(self.block[1], 1)
        self.become_dense(
            layer, ("weight", "weight_scale_inv"), weight.float() * wide, "linear_fp8",
            "an FP8 linear of the CPU needs AMX in vLLM: dense once, after loading",
        )  # fmt: skip
