"""Block-scaled FP8 experts (e4m3, one float32 scale for 128 x 128) through `xpu_moe.ops.moe_fp8_block`.

Where a backend takes prepared inputs, decode is two launches: `route_and_quant_fp8` makes routes and e4m3 activations
from the router's logits, `moe_fp8_block` consumes them; vLLM's router is not asked. Else, and for prefill, the layer
takes x and routes. The checkpoint's tensors are the layer's: nothing is repacked unless the backend's layout says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoeWeightScaleSupported
from vllm.model_executor.utils import set_weight_attrs

# these two define torch.ops.xpu_moe.…
import xpu_moe.ops.moe_fp8_block
import xpu_moe.ops.route_and_quant_fp8  # noqa: F401
from xpu_moe.ops.activation import is_gated
from xpu_moe.ops.contract import NoBackend, select, with_tokens
from xpu_moe.serving import workspace
from xpu_moe.serving.arrivals import check_finite
from xpu_moe.serving.choice import Unservable, Way, choose
from xpu_moe.serving.moe_method import OurMoeMethod

BLOCK = 128


@dataclass(frozen=True)
class Fp8Weights:
    """A layer's tensors: w13 e4m3 [E, 2I, H] (gate rows, then up), w13_scale float32 [E, 2I/128, H/128]; w2 alike."""

    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    layout: str = "n_major"

    @property
    def nbytes(self) -> int:
        tensors = (self.w13, self.w13_scale, self.w2, self.w2_scale)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Fp8MoeMethod(OurMoeMethod):
    """e4m3 experts with 128 x 128 scales."""

    prepared: Way | None = None

    @property
    def is_monolithic(self) -> bool:
        return self.prepared is not None

    def decide(self, layer: Any, experts: int, hidden: int, inter: int, dtype: torch.dtype) -> None:
        """Who serves the layer. Raises Unservable."""
        case = self.case_of(layer, experts, hidden, inter, dtype, BLOCK, op="moe_fp8_block", scheme="fp8_block")
        self.choice = choose(case, self.options, self.max_tokens)
        if self.choice.decode.by_name or self.choice.prefill.by_name:
            raise Unservable(f"{layer.layer_name}: a backend by name is not offered for FP8; leave `backend` empty")
        self.prepared, self.routing = self._prepared(layer)

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **attributes: Any,
    ) -> None:
        """Decide who serves the layer, then register the checkpoint's own tensors. Raises Unservable."""
        inter = intermediate_size_per_partition
        self.decide(layer, num_experts, hidden_size, inter, params_dtype)
        rows = (2 if is_gated(self.choice.case.activation) else 1) * inter
        arrivals = self.arrivals = self.watched(layer, num_experts)
        whole = inter * self.moe.tp_size
        for name, width, depth, disk in (
            ("w13", rows, hidden_size, (whole, hidden_size)), ("w2", hidden_size, inter, (hidden_size, whole)),
        ):  # fmt: skip
            weight = torch.empty(num_experts, width, depth, dtype=torch.float8_e4m3fn)
            scale = torch.ones(num_experts, width // BLOCK, depth // BLOCK, dtype=torch.float32)
            scaled = {**attributes, "quant_method": FusedMoeWeightScaleSupported.BLOCK.value}
            for part, tensor, extra in (("weight", weight, attributes), ("weight_scale_inv", scale, scaled)):
                parameter = torch.nn.Parameter(tensor, requires_grad=False)
                layer.register_parameter(f"{name}_{part}", parameter)
                size = disk if part == "weight" else tuple(-(-side // BLOCK) for side in disk)
                loader = arrivals.watch(f"{name}_{part}", attributes.get("weight_loader"), size)
                set_weight_attrs(parameter, {**extra, "weight_loader": loader})

    def process_weights_after_loading(self, layer: Any) -> None:
        choice = self.choice
        for name in ("w13", "w2"):
            for part in ("weight", "weight_scale_inv"):
                self.arrivals.require(f"{name}_{part}")
            scales = getattr(layer, f"{name}_weight_scale_inv").data
            check_finite(f"{layer.layer_name}.{name}_weight_scale_inv", scales)
        w13, w13_scale, w2, w2_scale = (tensor.data for tensor in _weights(layer))
        weights = Fp8Weights(w13, w13_scale, w2, w2_scale)
        loaded = weights.nbytes
        weights = choice.decode.backend.prepare(weights, choice.case)
        if self.prepared is not None:
            weights = self.prepared.backend.prepare(weights, replace(choice.case, prepared=True))
        if weights.layout != choice.case.layout:
            raise Unservable(f"{layer.layer_name}: weights came out as {weights.layout}, wanted {choice.case.layout}")
        for name in ("w13", "w2"):
            for part, tensor in (
                ("weight", getattr(weights, name)), ("weight_scale_inv", getattr(weights, f"{name}_scale")),
            ):  # fmt: skip
                layer.register_parameter(f"{name}_{part}", torch.nn.Parameter(tensor, requires_grad=False))
        needs = [
            choice.decode.backend.workspace(choice.case),
            choice.prefill.backend.workspace(with_tokens(choice.case, self.max_tokens, choice.limit + 1)),
        ]
        if max(needs):
            self.workspace = workspace.shared(max(needs), weights.w13.device)
        self.report(layer, "moe_fp8", weights, loaded, weights.nbytes, self.prepared or choice.decode)

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [M, H], routes [M, top_k] -> [M, H], this rank's partial sum. No condition may ask for M (see moe_int4)."""
        case = self.choice.case
        return torch.ops.xpu_moe.moe_fp8_block(
            x, None, *_weights(layer), topk_weights, topk_ids, case.activation, case.layout, self.workspace
        )

    def apply_monolithic(
        self,
        layer: Any,
        x: torch.Tensor,
        router_logits: torch.Tensor,
        input_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same from the router's logits: decode on prepared inputs, prefill routed first."""
        case = self.choice.case
        if x.shape[0] > self.choice.limit:
            return self.apply(layer, x, *self.route(layer, x, router_logits))
        weights, ids, x_q, x_scale = torch.ops.xpu_moe.route_and_quant_fp8(
            x, router_logits, layer.e_score_correction_bias, layer.top_k, layer.renormalize, 1.0, BLOCK, "row_major",
            False, 0,
        )  # fmt: skip
        return torch.ops.xpu_moe.moe_fp8_block(
            x_q, x_scale, *_weights(layer), weights, ids, case.activation, case.layout, self.workspace
        )

    def _prepared(self, layer: Any) -> tuple[Way | None, str]:
        """Who serves decode from prepared inputs, or why nobody does."""
        lacking = self.why_vllm_routes(layer)
        case = replace(self.choice.case, prepared=True)
        if lacking or self.options.routed == "off":
            return None, f"vLLM: {lacking or 'routed is off'}"
        if case.device == "cpu":
            return None, "vLLM: e4m3 activations gain nothing on a CPU, and cost accuracy"
        if case.dtype != "bfloat16":
            return None, f"vLLM: prepared inputs give bfloat16, the model is {case.dtype}"
        try:
            taken = select(case)
            router = select(
                replace(case, op="route_and_quant_fp8", intermediate_size=0, activation="", scheme="", prepared=False)
            )
        except NoBackend as error:
            return None, f"vLLM: {error}"
        return Way(taken.name, taken.reason, taken.backend), f"route_and_quant_fp8: {router.name}: {router.reason}"


def _weights(layer: Any) -> tuple[torch.Tensor, ...]:
    return layer.w13_weight, layer.w13_weight_scale_inv, layer.w2_weight, layer.w2_weight_scale_inv
