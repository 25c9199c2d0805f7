"""vLLM's slot for a MoE layer's quantization method, filled with ours for symmetric 4-bit experts.

Life of a layer: `create_weights` decides who serves it (nothing is loaded before that) and makes parameters in the
checkpoint's own packing, which vLLM's loaders fill, sharded; `process_weights_after_loading` turns them into the
chosen layout in their own storage, an expert at a time; `apply` calls one opaque operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, FusedMoeWeightScaleSupported
from vllm.model_executor.utils import set_weight_attrs

# these four define torch.ops.xpu_moe.…
import xpu_moe.ops.moe_u4
import xpu_moe.ops.moe_u4_routed
import xpu_moe.ops.route_sigmoid_topk
import xpu_moe.serving.named  # noqa: F401
from xpu_moe import device
from xpu_moe.formats import gptq
from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.formats.quantization import Int4Spec, UnsupportedCheckpoint
from xpu_moe.ops.activation import ACTIVATIONS, is_gated
from xpu_moe.ops.contract import Case, NoBackend, select, with_tokens
from xpu_moe.serving import compat, stock_xpu, tell, workspace
from xpu_moe.serving.choice import Choice, Stock, Unservable, Way, choose, choose_routed
from xpu_moe.serving.options import Options
from xpu_moe.serving.packing import PER_WORD, check_order, plain_order, symmetric_zeros
from xpu_moe.serving.report import Layer


class Int4MoeMethod(FusedMoEMethodBase):
    """Symmetric 4-bit experts (AutoRound, GPTQ) through `xpu_moe.ops.moe_u4`."""

    def __init__(self, spec: Int4Spec, moe: Any) -> None:
        super().__init__(moe)
        self.spec = spec
        config = compat.vllm_config()
        self.options = Options.read(config.additional_config)
        self.max_tokens = int(config.scheduler_config.max_num_batched_tokens)
        # who asks vLLM for the routes of each token gets them from its own router only
        self.routes_wanted = compat.wants_routes(config)
        self.choice: Choice | None = None
        self.routed: Way | None = None
        self.routing = ""
        self.prefill: stock_xpu.Prefill | None = None
        self.workspace: torch.Tensor | None = None
        # calls with everything decided, where a backend offers them and vLLM does not trace the layer
        self.call: Callable[..., None] | None = None
        self.routed_call: Callable[..., None] | None = None

    @property
    def is_monolithic(self) -> bool:
        """Whether vLLM hands over the router's logits instead of routes."""
        return self.routed is not None

    @property
    def topk_indices_dtype(self) -> torch.dtype:
        return torch.int32

    def get_fused_moe_quant_config(self, layer: torch.nn.Module) -> None:
        return None

    def create_weights(
        self,
        layer: torch.nn.Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **attributes: Any,
    ) -> None:
        """Decide who serves the layer, then register checkpoint-shaped parameters. Raises Unservable."""
        self._refuse_what_we_lack(layer, num_experts)
        case = self._case(layer, num_experts, hidden_size, intermediate_size_per_partition, params_dtype)
        self.choice = choose(case, self.options, self.max_tokens, self._stock(case))
        self.routed, self.routing = self._routed(layer)
        experts, group = num_experts, self.spec.group_size
        rows = (2 if is_gated(case.activation) else 1) * intermediate_size_per_partition
        extra = {
            **attributes,
            "quant_method": FusedMoeWeightScaleSupported.GROUP.value,
            "is_transposed": True,  # K first, as on disk
        }
        for name, width, depth in (("w13", rows, hidden_size), ("w2", hidden_size, intermediate_size_per_partition)):
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
                set_weight_attrs(parameter, extra)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Checkpoint packing -> the chosen layout, in place. Raises UnsupportedCheckpoint naming the tensor."""
        assert self.choice is not None
        loaded = sum(p.numel() * p.element_size() for p in layer.parameters(recurse=False) if p.dim() == 3)
        weights = self._canonical(layer).as_nibble(self.choice.case.nibble)
        for way in (self.choice.decode, self.choice.prefill):
            if way.backend is not None and weights.layout != self.choice.case.layout:
                weights = way.backend.prepare(weights, self.choice.case)
        if weights.layout != self.choice.case.layout:
            raise Unservable(
                f"{layer.layer_name}: weights came out as {weights.layout}, wanted {self.choice.case.layout}"
            )
        for name in ("w13", "w2"):
            for part, tensor in (("weight", getattr(weights, name)), ("scales", getattr(weights, f"{name}_scale"))):
                layer.register_parameter(f"{name}_{part}", torch.nn.Parameter(tensor, requires_grad=False))
        self._bind(layer, weights)
        self._report(layer, weights, loaded)

    def apply(
        self,
        layer: torch.nn.Module,
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
        layer: torch.nn.Module,
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
        return self.apply(layer, x, *self._route(layer, x, router_logits))

    def _route(self, layer: torch.nn.Module, x: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Routes of a prefill step: our operator where a backend serves so many tokens, else vLLM's function."""
        bias = layer.e_score_correction_bias
        case = Case(
            "route_sigmoid_topk", self.choice.case.device, self.choice.case.architecture,
            str(logits.dtype).removeprefix("torch."), tokens=self.max_tokens, min_tokens=self.choice.limit + 1,
            num_experts=logits.shape[1], top_k=layer.top_k,
        )  # fmt: skip
        try:
            select(case)
        except NoBackend:
            from vllm.model_executor.layers.fused_moe.router.fused_topk_bias_router import fused_topk_bias

            return fused_topk_bias(x, logits, "sigmoid", bias, layer.top_k, layer.renormalize)
        return torch.ops.xpu_moe.route_sigmoid_topk(logits, bias, layer.top_k, layer.renormalize, 1.0)

    def _refuse_what_we_lack(self, layer: torch.nn.Module, num_experts: int) -> None:
        activation = layer.activation.value
        for field, got, good, wanted in (
            ("activation", activation, activation in ACTIVATIONS, " or ".join(ACTIVATIONS)),
            ("expert parallelism", "on", not layer.use_ep, "off: split the experts' width (--tensor-parallel-size)"),
            ("apply_router_weight_on_input", True, not layer.apply_router_weight_on_input, "False"),
            ("experts on this rank", num_experts, num_experts == layer.global_num_experts, layer.global_num_experts),
        ):
            if not good:
                raise Unservable(f"{layer.layer_name}: {field}: got {got}, wanted {wanted}")

    def _case(self, layer: torch.nn.Module, experts: int, hidden: int, inter: int, params_dtype: torch.dtype) -> Case:
        group, ranks = self.spec.group_size, self.moe.tp_size
        for field, size, whole in (("hidden_size", hidden, ""), ("intermediate_size", inter, f" a rank at tp {ranks}")):
            if size % group:
                raise Unservable(
                    f"{layer.layer_name}: {field}: got {size}{whole}, wanted a multiple of the checkpoint's group_size "
                    f"{group}" + (f" (--tensor-parallel-size {_fitting(inter * ranks, group, ranks)})" if whole else "")
                )
        kind = compat.device_kind()
        return Case(
            op="moe_u4",
            device=kind,
            architecture=device.architecture(kind),
            dtype=str(params_dtype).removeprefix("torch."),
            hidden_size=hidden,
            intermediate_size=inter,
            num_experts=experts,
            top_k=layer.top_k,
            group_size=group,
            nibble="u4",
            activation=layer.activation.value,
            scheme="int4",
        )

    @staticmethod
    def _stock(case: Case) -> Stock | None:
        """vLLM's own kernels for this device that read one of our layouts. Marlin (CUDA) reads another."""
        return stock_xpu.stock(torch.device("xpu", torch.xpu.current_device())) if case.device == "xpu" else None

    def _canonical(self, layer: torch.nn.Module) -> Int4MoeWeights:
        tensors = {}
        for name in ("w13", "w2"):
            where = f"{layer.layer_name}.{name}"
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

    def _routed(self, layer: torch.nn.Module) -> tuple[Way | None, str]:
        """Who routes: the decode call, where the model's routing is the operator's, or vLLM."""
        plain = layer.scoring_func == "sigmoid" and not layer.use_grouped_topk and layer.custom_routing_function is None
        if not plain or (layer.routed_scaling_factor or 1.0) != 1.0:
            return None, "vLLM: the model's routing is not sigmoid top-k with a bias"
        if self.routes_wanted:
            return None, "vLLM: the routes of each token are to be returned"
        way, why = choose_routed(self.choice, self.options, self.max_tokens)
        return way, why if way is not None else f"vLLM: {why}"

    def _bind(self, layer: torch.nn.Module, weights: Int4MoeWeights) -> None:
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

    def _report(self, layer: torch.nn.Module, weights: Int4MoeWeights, loaded: int) -> None:
        choice, case = self.choice, self.choice.case
        shape = f"E{case.num_experts} k{case.top_k} H{case.hidden_size} I{case.intermediate_size} g{case.group_size}"
        tell.layer(
            Layer(
                kind="moe_int4",
                case=f"{shape} {case.activation} {case.dtype} on {case.device} {case.architecture}".rstrip(),
                backend=choice.decode.name,
                reason=choice.decode.reason,
                prefill_backend=choice.prefill.name,
                prefill_reason=choice.prefill.reason,
                routing=self.routing,
                layout=weights.layout,
                nibble=weights.nibble,
                decode_limit=choice.limit,
                bytes_loaded=loaded,
                bytes_kept=weights.nbytes,
                refused=[list(row) for row in choice.refused],
                first=layer.layer_name,
            )
        )


def _weights(layer: torch.nn.Module) -> tuple[torch.Tensor, ...]:
    return layer.w13_weight, layer.w13_scales, layer.w2_weight, layer.w2_scales


def layer_index(name: str) -> int:
    """ "model.layers.7.mlp.experts" -> 7. Raises UnsupportedCheckpoint for a name without a layer number."""
    found = re.search(r"layers\.(\d+)\.", name + ".")
    if found is None:
        raise UnsupportedCheckpoint(f"MoE layer {name!r}: no layer number in its name")
    return int(found[1])


def _fitting(width: int, group: int, ranks: int) -> str:
    fits = [tp for tp in range(1, ranks) if ranks % tp == 0 and width % tp == 0 and (width // tp) % group == 0]
    return " or ".join(map(str, fits)) if fits else "none fits"
