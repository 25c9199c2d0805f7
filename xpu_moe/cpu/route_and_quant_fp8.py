"""`route_and_quant_fp8` on the CPU: the two halves one after the other; the operator's file states the semantics."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from xpu_moe.cpu.plain import Plain
from xpu_moe.cpu.route_sigmoid_topk import route
from xpu_moe.ops.contract import Case, Support
from xpu_moe.ops.route_and_quant_fp8 import EPSILON, FP8_MAX, Options, Routed, Runner, empty

_NAN = 0x7F


def power_of_two_above(scale: torch.Tensor) -> torch.Tensor:
    """The smallest power of two >= a positive float32, from its bits (infinity stays)."""
    bits = scale.contiguous().view(torch.int32)
    return ((bits + 0x7FFFFF) & ~0x7FFFFF).view(torch.float32)


def quantize(x: torch.Tensor, group_size: int, ue8m0: bool, padded: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, H] -> (e4m3 [M, padded or whole groups], scales float32 [M, groups]). The truth for tests."""
    tokens, hidden = x.shape
    groups = -(-(padded or hidden) // group_size)
    columns = padded or groups * group_size
    values = F.pad(x.float(), (0, groups * group_size - hidden)).view(tokens, groups, group_size)
    largest = values.abs().nan_to_num(nan=0.0, posinf=float("inf")).amax(dim=-1)
    # by a tensor: torch on CUDA multiplies by the reciprocal of a scalar, which is not the same division
    scales = largest.clamp(min=EPSILON) / torch.full_like(largest, FP8_MAX)
    if ue8m0:
        scales = power_of_two_above(scales)
    quotient = values / scales.unsqueeze(-1)
    codes = quotient.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).view(torch.uint8)
    codes = torch.where(quotient.isnan(), torch.full((), _NAN, dtype=torch.uint8), codes)
    return codes.view(tokens, groups * group_size)[:, :columns].contiguous().view(torch.float8_e4m3fn), scales


class Pair(Plain):
    """Routing, then quantisation."""

    name = "cpu_pair"
    op = "route_and_quant_fp8"

    def supports(self, case: Case) -> Support:
        return Support(True, "torch in float32, routing and quantisation one after the other")

    def bind(self, x, logits, bias, options: Options) -> Runner:
        """A callable for calls of these shapes."""

        def run(x, logits, bias, out: Routed | None) -> Routed:
            return self.run(x, logits, bias, options, out)

        return run

    def run(self, x, logits, bias, options: Options, out: Routed | None = None) -> Routed:
        out = out or empty(x, options)
        weights, ids = route(logits, bias, options.top_k, options.renormalize, options.scale)
        codes, scales = quantize(x, options.group_size, options.scale_ue8m0, options.padded_hidden_size)
        for target, value in zip(out, (weights, ids, codes, scales)):
            target.copy_(value)
        return out
