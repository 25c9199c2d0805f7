"""What quantised linears on a CPU share: once loaded they are dense, and the library multiplies."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase

from xpu_moe.serving import compat, tell
from xpu_moe.serving.report import Layer


class DenseAfterLoading(LinearMethodBase):
    """A linear whose checkpoint tensors give way to one dense weight [N, K] in the model's dtype."""

    prefix: str
    dtype: torch.dtype

    def become_dense(self, layer: Any, gone: tuple[str, ...], weight: torch.Tensor, kind: str, reason: str) -> None:
        """Put `weight` in the place of the parameters `gone`, and tell what that cost. `kind` names the format."""
        loaded = sum(p.numel() * p.element_size() for p in layer.parameters(recurse=False))
        for name in gone:
            layer._parameters.pop(name, None)
        weight = weight.to(self.dtype)
        layer.register_parameter("weight", torch.nn.Parameter(weight, requires_grad=False))
        rows, columns = weight.shape
        tell.layer(
            Layer(
                kind=kind,
                case=f"N{rows} K{columns}{self.grouping()} {self.dtype} on {compat.device_kind()}",
                backend="dequantized",
                reason=reason,
                bytes_loaded=loaded,
                bytes_kept=weight.numel() * weight.element_size(),
                first=self.prefix,
            )
        )

    def grouping(self) -> str:
        """What the report says of the scales' groups, with a blank before it."""
        return ""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)
