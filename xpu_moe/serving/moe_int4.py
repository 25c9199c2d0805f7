"""vLLM's slot for a MoE layer's quantization method, filled with ours for symmetric 4-bit experts.

Life of a layer: `create_weights` decides who serves it (nothing is loaded before that) and makes parameters in the
checkpoint's own packing, which vLLM's loaders fill, sharded; `process_weights_after_loading` turns them into the
chosen layout in their own storage, an expert at a time; `apply` calls one opaque operator.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoEMethodBase, FusedMoeWeightScaleSupported
from vllm.model_executor.utils import set_weight_attrs

import xpu_moe.ops.moe_u4  # defines torch.ops.xpu_moe.moe_u4
import xpu_moe.serving.named  # noqa: F401  defines torch.ops.xpu_moe.moe_u4_named
from xpu_moe import device
from xpu_moe.formats import gptq
from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.formats.quantization import Int4Spec, UnsupportedCheckpoint
from xpu_moe.ops.activation import ACTIVATIONS, is_gated
from xpu_moe.ops.contract import Case
from xpu_moe.serving import compat, stock_xpu, tell, workspace
from xpu_moe.serving.choice import Choice, Stock, Unservable, choose
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
        self.choice: Choice | None = None
        self.prefill: stock_xpu.Prefill | None = None
        self.workspace: torch.Tensor | None = None

    @property
    def is_monolithic(self) -> bool:
        return False

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
        """x [M, H], routes [M, top_k] -> [M, H], this rank's partial sum (vLLM all-reduces)."""
        choice = self.choice
        if self.prefill is not None and (choice.decode.stock or x.shape[0] > choice.limit):
            return self.prefill.run(x, topk_weights, topk_ids)
        case = choice.case
        tensors = (x, layer.w13_weight, layer.w13_scales, layer.w2_weight, layer.w2_scales, topk_weights, topk_ids)
        if choice.single or not (choice.decode.by_name or choice.prefill.by_name):
            return torch.ops.xpu_moe.moe_u4(
                *tensors, case.nibble, case.group_size, case.activation, case.layout, self.workspace
            )
        return torch.ops.xpu_moe.moe_u4_named(
            *tensors, case.nibble, case.group_size, case.activation, case.layout, self._name(choice.decode),
            self._name(choice.prefill), choice.limit, self.workspace,
        )  # fmt: skip

    @staticmethod
    def _name(way: Any) -> str:
        return way.name if way.by_name else ""

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

    def _bind(self, layer: torch.nn.Module, weights: Int4MoeWeights) -> None:
        choice = self.choice
        if choice.prefill.stock or choice.decode.stock:
            dtype = getattr(torch, choice.case.dtype)
            self.prefill = stock_xpu.Prefill(weights, choice.case.top_k, choice.case.activation, dtype)
        needs = [way.backend.workspace(choice.case) for way in (choice.decode, choice.prefill) if way.backend]
        if max(needs, default=0):
            self.workspace = workspace.shared(max(needs), weights.w13.device)

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
                layout=weights.layout,
                nibble=weights.nibble,
                decode_limit=choice.limit,
                bytes_loaded=loaded,
                bytes_kept=weights.nbytes,
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
