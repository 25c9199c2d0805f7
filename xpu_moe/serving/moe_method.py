"""What our MoE methods share, whatever the weights' format: options, refusals, routing."""

from __future__ import annotations

import re
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase

import xpu_moe.ops.route_sigmoid_topk  # noqa: F401  defines torch.ops.xpu_moe.route_sigmoid_topk
from xpu_moe import device
from xpu_moe.formats.quantization import UnsupportedCheckpoint
from xpu_moe.ops.activation import ACTIVATIONS, is_gated
from xpu_moe.ops.contract import Case, NoBackend, select
from xpu_moe.serving import compat, tell
from xpu_moe.serving.arrivals import Arrivals
from xpu_moe.serving.choice import Choice, Unservable
from xpu_moe.serving.options import Options
from xpu_moe.serving.report import Layer


class OurMoeMethod(FusedMoEMethodBase):
    """A MoE layer served by backends of `xpu_moe.ops`. Subclasses decide `choice` in create_weights.

    `layer` is vLLM's RoutedExperts wherever it is an argument.
    """

    choice: Choice

    def __init__(self, moe: Any) -> None:
        super().__init__(moe)
        config = compat.vllm_config()
        self.options = Options.read(config.additional_config)
        self.max_tokens = int(config.scheduler_config.max_num_batched_tokens)
        self.load_format = compat.load_format(config)
        # who asks vLLM for the routes of each token gets them from its own router only
        self.routes_wanted = compat.wants_routes(config)
        self.routing = ""
        self.workspace: torch.Tensor | None = None

    @property
    def topk_indices_dtype(self) -> torch.dtype:
        return torch.int32

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        return None

    def why_vllm_routes(self, layer: Any) -> str:
        """Why the routing cannot be ours, "" where it can: it is the operator's, and nobody else asks for it."""
        plain = layer.scoring_func == "sigmoid" and not layer.use_grouped_topk and layer.custom_routing_function is None
        if not plain or (layer.routed_scaling_factor or 1.0) != 1.0:
            return "the model's routing is not sigmoid top-k with a bias"
        return "the routes of each token are to be returned" if self.routes_wanted else ""

    def route(self, layer: Any, x: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
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

    def watched(self, layer: Any, experts: int) -> Arrivals:
        """A list of what the checkpoint brings for a layer."""
        return Arrivals(layer.layer_name, experts, is_gated(layer.activation.value), self.load_format)

    def case_of(
        self, layer: Any, experts: int, hidden: int, inter: int, dtype: torch.dtype, group: int, **more: Any
    ) -> Case:
        """The layer as a `Case`. Raises Unservable for what no operator of ours has, naming the way out."""
        activation = layer.activation.value
        for field, got, good, wanted in (
            ("activation", activation, activation in ACTIVATIONS, " or ".join(ACTIVATIONS)),
            ("expert parallelism", "on", not layer.use_ep, "off: split the experts' width (--tensor-parallel-size)"),
            ("apply_router_weight_on_input", True, not layer.apply_router_weight_on_input, "False"),
            ("experts on this rank", experts, experts == layer.global_num_experts, layer.global_num_experts),
        ):
            if not good:
                raise Unservable(f"{layer.layer_name}: {field}: got {got}, wanted {wanted}")
        ranks = self.moe.tp_size
        for field, size, whole in (("hidden_size", hidden, ""), ("intermediate_size", inter, f" a rank at tp {ranks}")):
            if size % group:
                raise Unservable(
                    f"{layer.layer_name}: {field}: got {size}{whole}, wanted a multiple of the checkpoint's group_size "
                    f"{group}" + (f" (--tensor-parallel-size {_fitting(inter * ranks, group, ranks)})" if whole else "")
                )
        kind = compat.device_kind()
        return Case(
            device=kind, architecture=device.architecture(kind), dtype=str(dtype).removeprefix("torch."),
            hidden_size=hidden, intermediate_size=inter, num_experts=experts, top_k=layer.top_k, group_size=group,
            activation=activation, **more,
        )  # fmt: skip

    def report(self, layer: Any, kind: str, weights: Any, loaded: int, kept: int, decode: Any) -> None:
        """Tell who serves: `decode` is the decode way, `weights` has a layout and perhaps a nibble."""
        choice, case = self.choice, self.choice.case
        shape = f"E{case.num_experts} k{case.top_k} H{case.hidden_size} I{case.intermediate_size} g{case.group_size}"
        tell.layer(
            Layer(
                kind=kind,
                case=f"{shape} {case.activation} {case.dtype} on {case.device} {case.architecture}".rstrip(),
                backend=decode.name,
                reason=decode.reason,
                prefill_backend=choice.prefill.name,
                prefill_reason=choice.prefill.reason,
                routing=self.routing,
                layout=weights.layout,
                nibble=getattr(weights, "nibble", ""),
                decode_limit=choice.limit,
                bytes_loaded=loaded,
                bytes_kept=kept,
                refused=[list(row) for row in choice.refused],
                first=layer.layer_name,
            )
        )


def layer_index(name: str) -> int:
    """ "model.layers.7.mlp.experts" -> 7. Raises UnsupportedCheckpoint for a name without a layer number."""
    found = re.search(r"layers\.(\d+)\.", name + ".")
    if found is None:
        raise UnsupportedCheckpoint(f"MoE layer {name!r}: no layer number in its name")
    return int(found[1])


def _fitting(width: int, group: int, ranks: int) -> str:
    fits = [tp for tp in range(1, ranks) if ranks % tp == 0 and width % tp == 0 and (width // tp) % group == 0]
    return " or ".join(map(str, fits)) if fits else "none fits"
