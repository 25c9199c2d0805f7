"""Sigmoid routing in vLLM's CPU router.

0.32's CPURouter asserts softmax unless the routing is grouped: MiniMax (sigmoid, a bias for the choice only) answers
/health and ends the engine at the first request. Its routing method is given the missing case, by our operator.
"""

from __future__ import annotations

from typing import Any

import torch

import xpu_moe.ops.route_sigmoid_topk  # noqa: F401  defines torch.ops.xpu_moe.route_sigmoid_topk
from xpu_moe.serving import compat


def early() -> str:
    module = compat.cpu_router()
    if module is None or getattr(module.CPURouter._compute_routing, "_xpu_moe", False):
        return ""
    original = module.CPURouter._compute_routing

    def _compute_routing(
        self: Any, hidden_states: torch.Tensor, router_logits: torch.Tensor, indices_type: Any, *, input_ids: Any = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.use_grouped_topk or self.custom_routing_function is not None or self.scoring_func != "sigmoid":
            return original(self, hidden_states, router_logits, indices_type, input_ids=input_ids)
        return torch.ops.xpu_moe.route_sigmoid_topk(
            router_logits,
            self.e_score_correction_bias,
            self.top_k,
            self.renormalize,
            float(self.routed_scaling_factor or 1.0),
        )

    _compute_routing._xpu_moe = True  # type: ignore[attr-defined]
    module.CPURouter._compute_routing = _compute_routing
    return "sigmoid routing through ops.route_sigmoid_topk"
