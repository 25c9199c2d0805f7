"""4-bit linears (q, k, v, o) on a CPU, where vLLM's INT4 linear kernels need AMX or AVX-512.

They are dequantised once, after loading, to the model's dtype: the layer keeps 2 bytes a weight (bf16) instead of 0.53,
and its product is the library's own. The report says so. Attention of MiniMax-M2 is 2.7 of its 229 G parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.parameter import GroupQuantScaleParameter, PackedvLLMParameter, RowvLLMParameter

from xpu_moe.formats import gptq
from xpu_moe.formats.quantization import Int4Spec
from xpu_moe.serving import compat
from xpu_moe.serving.arrivals import check_finite
from xpu_moe.serving.linear_dense import DenseAfterLoading
from xpu_moe.serving.packing import PER_WORD, check_order, dense, plain_order, symmetric_zeros


class DequantizedLinear(DenseAfterLoading):
    """A symmetric 4-bit linear that becomes a dense one when its weights are there."""

    def __init__(self, spec: Int4Spec, prefix: str) -> None:
        self.spec, self.prefix = spec, prefix

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
        depth, width, group = input_size_per_partition, sum(output_partition_sizes), self.spec.group_size
        if depth % group:
            raise ValueError(f"{self.prefix}: input size {depth} a rank, wanted a multiple of group_size {group}")
        loader = attributes.get("weight_loader")
        self.dtype = params_dtype
        packed = {"input_dim": 0, "output_dim": 1, "packed_factor": PER_WORD, "weight_loader": loader}
        parameters = {
            "qweight": PackedvLLMParameter(
                data=torch.empty(depth // PER_WORD, width, dtype=torch.int32), packed_dim=0, **packed
            ),
            # fp16 as stored, whatever the model's dtype is; NaN where the checkpoint brings none
            "scales": GroupQuantScaleParameter(
                data=torch.full((depth // group, width), torch.nan, dtype=torch.float16),
                input_dim=0,
                output_dim=1,
                weight_loader=loader,
            ),
            "qzeros": PackedvLLMParameter(
                data=symmetric_zeros((depth // group, width // PER_WORD), self.spec.zero_point), packed_dim=1, **packed
            ),
        }
        if compat.loads_g_idx():
            parameters["g_idx"] = RowvLLMParameter(data=plain_order(depth, group), input_dim=0, weight_loader=loader)
        for name, parameter in parameters.items():
            layer.register_parameter(name, parameter)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Raises UnsupportedCheckpoint for real zero points, reordered rows, scales that are missing or no numbers."""
        gptq.check_symmetric(f"{self.prefix}.qzeros", layer.qzeros.data, self.spec.zero_point)
        check_finite(f"{self.prefix}.scales", layer.scales.data)
        if "g_idx" in layer._parameters:
            check_order(f"{self.prefix}.g_idx", layer.g_idx.data, self.spec.group_size)
        weight = dense(layer.qweight.data, layer.scales.data)
        self.become_dense(
            layer, ("qweight", "scales", "qzeros", "g_idx"), weight, "linear_int4",
            "a 4-bit linear of the CPU needs AMX in vLLM: dense once, after loading",
        )  # fmt: skip

    def grouping(self) -> str:
        return f" g{self.spec.group_size}"
