"""The quantization configs that claim MiniMax checkpoints. Importing this file registers them with vLLM.

The classes stand at module level because they end up in VllmConfig, which is pickled to spawned workers. Their names
are not vLLM's own, so vLLM asks them before its built-in methods. What they do not serve themselves (linears on XPU and
CUDA, lm_head, attention's KV cache) goes to the vLLM class that they derive from.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts, UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.model_executor.layers.quantization.inc import INCConfig
from vllm.model_executor.layers.quantization.utils.gptq_utils import get_linear_quant_method
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped

from xpu_moe.formats.claims import AUTO_ROUND, FP8, GPTQ, STOCK_NAMES, experts_of_layer, judge_fp8, judge_int4
from xpu_moe.formats.quantization import Int4Spec, UnsupportedCheckpoint, read_int4
from xpu_moe.serving import compat, tell
from xpu_moe.serving.linear_fp8 import DequantizedFp8Linear
from xpu_moe.serving.linear_int4 import DequantizedLinear
from xpu_moe.serving.moe_fp8 import Fp8MoeMethod
from xpu_moe.serving.moe_int4 import Int4MoeMethod
from xpu_moe.serving.moe_method import layer_index


class _Named:
    """A method under our name; float32 activations too, on a CPU."""

    own: str

    @classmethod
    def get_name(cls) -> str:
        return cls.own

    @classmethod
    def get_supported_act_dtypes(cls) -> list[torch.dtype]:
        kinds = [torch.float16, torch.bfloat16]
        return [*kinds, torch.float32] if compat.device_kind() == "cpu" else kinds


class _Claiming(_Named):
    """What both INT4 configs share: the claim, the experts, and the checkpoint's config as it is on disk."""

    raw: dict[str, Any]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        made = super().from_config(config)  # type: ignore[misc]
        made.raw = dict(config)
        return made

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        """Our name where the checkpoint is taken. Raises UnsupportedCheckpoint naming the field (see `claims`)."""
        model_type = getattr(hf_config, "model_type", "")
        claim = judge_int4(cls.own, hf_quant_cfg, model_type, user_quant, compat.device_kind())
        if claim.name is None and claim.reason:
            tell.note(f"left to vLLM's {STOCK_NAMES[cls.own]}: {claim.reason}")
        return claim.name

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            experts = experts_of_layer(self.raw, layer_index(prefix), layer.global_num_experts)
            if experts.spec is None:
                return UnquantizedFusedMoEMethod(layer.moe_config)
            return Int4MoeMethod(experts.spec, layer.moe_config)
        if isinstance(layer, LinearBase) and compat.device_kind() == "cpu":
            return self.cpu_linear(layer, prefix)
        return super().get_quant_method(layer, prefix)  # type: ignore[misc]

    def cpu_linear(self, layer: torch.nn.Module, prefix: str) -> Any:
        raise NotImplementedError


@register_quantization_config(AUTO_ROUND)
class AutoRoundInt4Config(_Claiming, INCConfig):
    """`quant_method: auto-round`, symmetric 4 bit."""

    own = AUTO_ROUND

    def cpu_linear(self, layer: torch.nn.Module, prefix: str) -> Any:
        found = self.config_parser.resolve(layer, prefix)
        if not found.quantized:
            return super(_Claiming, self).get_quant_method(layer, prefix)
        base = read_int4(self.raw)
        return DequantizedLinear(_checked(prefix, found.bits, found.sym, found.group_size, base), prefix)


@register_quantization_config(GPTQ)
class GptqInt4Config(_Claiming, AutoGPTQConfig):
    """`quant_method: gptq`, symmetric 4 bit, no desc_act."""

    own = GPTQ

    def cpu_linear(self, layer: torch.nn.Module, prefix: str) -> Any:
        base = read_int4(self.raw)

        def make(config: AutoGPTQConfig) -> DequantizedLinear:
            return DequantizedLinear(
                _checked(prefix, config.weight_bits, config.is_sym, config.group_size, base), prefix
            )

        return get_linear_quant_method(self, layer, prefix, make)


@register_quantization_config(FP8)
class Fp8BlockConfig(_Named, Fp8Config):
    """`quant_method: fp8` with 128 x 128 scales: on a CPU, elsewhere when asked for by name."""

    own = FP8

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> str | None:
        model_type = getattr(hf_config, "model_type", "")
        return judge_fp8(hf_quant_cfg, model_type, user_quant, compat.device_kind()).name

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            return Fp8MoeMethod(layer.moe_config)
        if isinstance(layer, LinearBase) and compat.device_kind() == "cpu":
            if is_layer_skipped(prefix, self.ignored_layers, self.packed_modules_mapping):
                return UnquantizedLinearMethod()
            return DequantizedFp8Linear(self.weight_block_size, prefix)
        return super().get_quant_method(layer, prefix)


def _checked(prefix: str, bits: int, symmetric: bool, group_size: int, base: Int4Spec) -> Int4Spec:
    """The spec of a linear that an override may have changed. Raises UnsupportedCheckpoint."""
    if bits != 4 or not symmetric:
        raise UnsupportedCheckpoint(
            f"quantization_config override of {prefix}: got bits {bits!r}, sym {symmetric!r}, wanted 4 and true "
            "(or 16 bits: not quantised) on a CPU"
        )
    return Int4Spec(base.method, group_size, base.zero_point)
