"""vLLM's slot for a MoE layer's quantization method, filled with ours for symmetric 4-bit experts.

Life of a layer: `create_weights` decides who serves it (nothing is loaded before that) and makes parameters in the
checkpoint's own packing, which vLLM's loaders fill, sharded; `process_weights_after_loading` turns them into the
chosen layout in their own storage, an expert at a time; `apply` calls one opaque operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoeWeightScaleSupported
from vllm.model_executor.utils import set_weight_attrs

# these three define torch.ops.xpu_moe.…
import xpu_moe.ops.moe_u4
import xpu_moe.ops.moe_u4_routed
import xpu_moe.serving.named  # noqa: F401
from xpu_moe.formats import gptq
from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.formats.quantization import Int4Spec
from xpu_moe.ops.activation import is_gated
from xpu_moe.ops.contract import Case, with_tokens
from xpu_moe.serving import compat, stock_xpu, workspace
from xpu_moe.serving.arrivals import check_finite, on_disk
from xpu_moe.serving.choice import Stock, Unservable, Way, choose, choose_routed
from xpu_moe.serving.moe_method import OurMoeMethod
from xpu_moe.serving.packing import PER_WORD, check_order, plain_order, symmetric_zeros


class Int4MoeMethod(OurMoeMethod):
    """Symmetric 4-bit experts (AutoRound, GPTQ) through `xpu_moe.ops.moe_u4`."""

    def __init__(self, spec: Int4Spec, moe: Any) -> None:
        super().__init__(moe)
        self.spec = spec
        self.routed: Way | None = None
        self.prefill: stock_xpu.Prefill | None = None
        # calls with everything decided, where a backend offers them and vLLM does not trace the layer
        self.call: Callable[..., None] | None = None
        self.routed_call: Callable[..., None] | None = None

    @property
    def is_monolithic(self) -> bool:
        """Whether vLLM hands over the router's logits instead of routes."""
        return self.routed is not None

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **attributes: Any,
    ) -> None:
        """Decide who serves the layer, then register checkpoint-shaped parameters. Raises Unservable."""
        case = self.case_of(
            layer, num_experts, hidden_size, intermediate_size_per_partition, params_dtype, self.spec.group_size,
            op="moe_u4", nibble="u4", scheme="int4",
        )  # fmt: skip
        self.choice = choose(case, self.options, self.max_tokens, self._stock(case))
        self.routed, self.routing = self._routed(layer)
        experts, group = num_experts, self.spec.group_size
        rows = (2 if is_gated(case.activation) else 1) * intermediate_size_per_partition
        extra = {
            **attributes,
            "quant_method": FusedMoeWeightScaleSupported.GROUP.value,
            "is_transposed": True,  # K first, as on disk
        }
        arrivals = self.arrivals = self.watched(layer, experts)
        whole = intermediate_size_per_partition * self.moe.tp_size
        for name, width, depth, disk in (
            ("w13", rows, hidden_size, on_disk(hidden_size, whole, group, PER_WORD)),
            ("w2", hidden_size, intermediate_size_per_partition, on_disk(whole, hidden_size, group, PER_WORD)),
        ):
            # fp16 whatever the model's dtype is: AutoRound stores fp16 scales, and bf16 would cut three of their bits
            tensors = {
                "qweight": torch.empty(experts, depth // PER_WORD, width, dtype=torch.int32),
                "scales": torch.empty(experts, depth // group, width, dtype=torch.float16),
                # what a checkpoint without zero points means; it is compared with this after loading
                "qzeros": symmetric_zeros((experts, depth // group, width // PER_WORD), self.spec.zero_point),
            }
            if compat.loads_g_idx():
                tensors["g_idx"] = plain_order(depth, group).repeat(experts, 1)
            for part, tensor in tensors.items():
                parameter = torch.nn.Parameter(tensor, requires_grad=False)
                layer.register_parameter(f"{name}_{part}", parameter)
                loader = arrivals.watch(f"{name}_{part}", attributes.get("weight_loader"), disk[part])
                set_weight_attrs(parameter, {**extra, "weight_loader": loader})

    def process_weights_after_loading(self, layer: Any) -> None:
        """Checkpoint packing -> the chosen layout, in place. Raises UnsupportedCheckpoint naming the tensor."""
        loaded = sum(p.numel() * p.element_size() for p in layer.parameters(recurse=False) if p.dim() == 3)
        weights = self._canonical(layer).as_nibble(self.choice.case.nibble)
        if self.choice.decode.backend is not None:
            weights = self.choice.decode.backend.prepare(weights, self.choice.case)
        if weights.layout != self.choice.case.layout and self.choice.prefill.backend is not None:
            weights = self.choice.prefill.backend.prepare(weights, self.choice.case)
        if weights.layout != self.choice.case.layout:
            raise Unservable(
                f"{layer.layer_name}: weights came out as {weights.layout}, wanted {self.choice.case.layout}"
            )
        for name in ("w13", "w2"):
            for part, tensor in (("weight", getattr(weights, name)), ("scales", getattr(weights, f"{name}_scale"))):
                layer.register_parameter(f"{name}_{part}", torch.nn.Parameter(tensor, requires_grad=False))
        self._bind(layer, weights)
        self.report(layer, "moe_int4", weights, loaded, weights.nbytes, self.choice.decode)

    def apply(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [M, H], routes [M, top_k] -> [M, H], this rank's partial sum (vLLM all-reduces).

        On a CPU Dynamo traces this, with M symbolic: there none of the conditions may ask for M.
        """
        choice = self.choice
        if self.prefill is not None and (choice.decode.stock or x.shape[0] > choice.limit):
            return self.prefill.run(x, topk_weights, topk_ids)
        if self.call is not None and x.shape[0] <= choice.limit and topk_weights.dtype is torch.float32:
            out = torch.empty_like(x)
            self.call(x, topk_weights, topk_ids, out, self.workspace)
            return out
        case = choice.case
        tensors = (x, *_weights(layer), topk_weights, topk_ids)
        settings = (case.nibble, case.group_size, case.activation, case.layout)
        if not (choice.decode.by_name or choice.prefill.by_name):
            return torch.ops.xpu_moe.moe_u4(*tensors, *settings, self.workspace)
        names = [way.name if way.by_name else "" for way in (choice.decode, choice.prefill)]
        return torch.ops.xpu_moe.moe_u4_named(*tensors, *settings, *names, choice.limit, self.workspace)

    def apply_monolithic(
        self,
        layer: Any,
        x: torch.Tensor,
        router_logits: torch.Tensor,
        input_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same from the router's logits [M, E]: decode in one call, prefill routed first."""
        case, limit = self.choice.case, self.choice.limit
        if case.device == "cpu" or x.shape[0] <= limit:
            if self.routed_call is not None and router_logits.dtype is torch.float32:
                out = torch.empty_like(x)
                self.routed_call(x, router_logits, out, self.workspace)
                return out
            return torch.ops.xpu_moe.moe_u4_routed(
                x, *_weights(layer), router_logits, layer.e_score_correction_bias, case.top_k, case.nibble,
                case.group_size, case.activation, layer.renormalize, 1.0, case.layout, self.workspace,
            )  # fmt: skip
        return self.apply(layer, x, *self.route(layer, x, router_logits))

    @staticmethod
    def _stock(case: Case) -> Stock | None:
        """vLLM's own kernels for this device that read one of our layouts. Marlin (CUDA) reads another."""
        return stock_xpu.stock(torch.device("xpu", torch.xpu.current_device())) if case.device == "xpu" else None

    def _canonical(self, layer: Any) -> Int4MoeWeights:
        tensors: dict[str, Any] = {}
        for name in ("w13", "w2"):
            where = f"{layer.layer_name}.{name}"
            for part in ("qweight", "scales"):
                self.arrivals.require(f"{name}_{part}")
            check_finite(f"{where}_scales", getattr(layer, f"{name}_scales").data)
            gptq.check_symmetric(f"{where}_qzeros", getattr(layer, f"{name}_qzeros").data, self.spec.zero_point)
            if f"{name}_g_idx" in layer._parameters:
                for order in getattr(layer, f"{name}_g_idx").data:
                    check_order(f"{where}_g_idx", order, self.spec.group_size)
            tensors[name] = gptq.stack_in_place(getattr(layer, f"{name}_qweight").data)
            tensors[f"{name}_scale"] = gptq.scales_in_place(getattr(layer, f"{name}_scales").data)
            for part in ("qweight", "scales", "qzeros", "g_idx"):
                layer._parameters.pop(f"{name}_{part}", None)
        gated = is_gated(self.choice.case.activation)
        return Int4MoeWeights(**tensors, nibble="u4", group_size=self.spec.group_size, gated=gated)

    def _routed(self, layer: Any) -> tuple[Way | None, str]:
        """Who routes: the decode call, where the model's routing is the operator's, or vLLM."""
        lacking = self.why_vllm_routes(layer)
        if lacking:
            return None, f"vLLM: {lacking}"
        way, why = choose_routed(self.choice, self.options, self.max_tokens)
        return way, why if way is not None else f"vLLM: {why}"

    def _bind(self, layer: Any, weights: Int4MoeWeights) -> None:
        choice, case = self.choice, self.choice.case
        dtype = getattr(torch, case.dtype)
        if choice.prefill.stock or choice.decode.stock:
            self.prefill = stock_xpu.Prefill(weights, case.top_k, case.activation, dtype)
        needs = [self.routed.backend.workspace(replace(case, op="moe_u4_routed"))] if self.routed else []
        if choice.decode.backend is not None:
            needs.append(choice.decode.backend.workspace(case))
        if choice.prefill.backend is not None:
            needs.append(choice.prefill.backend.workspace(with_tokens(case, self.max_tokens, choice.limit + 1)))
        if max(needs, default=0):
            self.workspace = workspace.shared(max(needs), weights.w13.device)
        if case.device == "cpu":
            return
        tensors = (weights.w13, weights.w13_scale, weights.w2, weights.w2_scale)
        settings = {
            "nibble": case.nibble, "group_size": case.group_size, "top_k": case.top_k, "dtype": dtype,
            "activation": case.activation,
        }  # fmt: skip
        if hasattr(choice.decode.backend, "bind") and "+" not in choice.decode.name:
            self.call = choice.decode.backend.bind(*tensors, **settings)
        if self.routed is not None and hasattr(self.routed.backend, "bind"):
            bias, renormalize = layer.e_score_correction_bias, layer.renormalize
            self.routed_call = self.routed.backend.bind(*tensors, bias, renormalize=renormalize, **settings)


def _weights(layer: Any) -> tuple[torch.Tensor, ...]:
    return layer.w13_weight, layer.w13_scales, layer.w2_weight, layer.w2_scales
