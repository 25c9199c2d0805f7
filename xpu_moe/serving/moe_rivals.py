"""Others' MoE chains as rivals of a benchmark: callables, or the sentence that says why there are none.

Each is bound the way its own project binds it, at its best: weights repacked and work space made beforehand, routes
given. What an adapter asks of a package stands in a table, with the arguments that it passes; a release that lacks one
is named with the argument before anything runs. Written against vLLM 0.26.0 and FlashInfer 0.6.13.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# (x, topk_weights, topk_ids) -> [M, H]; x is bf16 [M, H], or (e4m3 codes, scales) where a chain takes prepared inputs.
Run = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
Fp8Layer = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]  # w13, w13_scale, w2, w2_scale


@dataclass(frozen=True)
class Needed:
    """A name of a module (a dotted one: an attribute of a class) and the arguments that are passed to it by name."""

    module: str
    name: str
    arguments: tuple[str, ...] = ()


_LAYERS = "vllm.model_executor.layers"
_SILU = Needed(f"{_LAYERS}.fused_moe.activation", "MoEActivation")
_OPS = "vllm._custom_ops"

MARLIN = (
    Needed(
        f"{_LAYERS}.fused_moe.experts.marlin_moe", "fused_marlin_moe",
        ("hidden_states", "w1", "w2", "bias1", "bias2", "w1_scale", "w2_scale", "topk_weights", "topk_ids",
         "quant_type_id", "global_num_experts", "moe_sum", "workspace"),
    ),
    Needed(f"{_LAYERS}.quantization.utils.marlin_utils", "marlin_moe_permute_scales",
           ("s", "size_k", "size_n", "group_size")),
    Needed(f"{_LAYERS}.quantization.utils.marlin_utils", "marlin_make_workspace_new", ("device", "max_blocks_per_sm")),
    Needed(_OPS, "gptq_marlin_moe_repack", ("b_q_weight", "perm", "size_k", "size_n", "num_bits")),
    Needed(_OPS, "moe_sum", ("input", "output")),
    Needed("vllm.scalar_type", "scalar_types"),
)  # fmt: skip

TRITON = (
    Needed(
        f"{_LAYERS}.fused_moe.experts.triton_moe", "TritonExperts.apply",
        ("output", "hidden_states", "w1", "w2", "topk_weights", "topk_ids", "activation", "global_num_experts",
         "expert_map", "a1q_scale", "a2_scale", "workspace13", "workspace2", "expert_tokens_meta",
         "apply_router_weight_on_input"),
    ),
    Needed(f"{_LAYERS}.fused_moe.experts.triton_moe", "TritonExperts", ("moe_config", "quant_config")),
    Needed(
        f"{_LAYERS}.fused_moe.experts.triton_moe", "TritonExperts.workspace_shapes",
        ("M", "N", "K", "topk", "global_num_experts", "local_num_experts", "expert_tokens_meta", "activation"),
    ),
    Needed(f"{_LAYERS}.fused_moe.config", "fp8_w8a8_moe_quant_config", ("w1_scale", "w2_scale", "block_shape")),
    Needed(
        f"{_LAYERS}.fused_moe.config", "FusedMoEConfig",
        ("num_experts", "experts_per_token", "hidden_dim", "intermediate_size", "num_local_experts",
         "num_logical_experts", "activation", "device", "routing_method", "moe_parallel_config", "in_dtype"),
    ),
    Needed(f"{_LAYERS}.fused_moe.config", "FusedMoEParallelConfig.make_no_parallel"),
    Needed(f"{_LAYERS}.fused_moe.config", "RoutingMethodType.MiniMax2"),
    Needed(f"{_LAYERS}.quantization.utils.fp8_utils", "per_token_group_quant_fp8", ("x", "group_size", "use_ue8m0")),
    _SILU,
)  # fmt: skip

FLASHINFER = (
    Needed(
        "flashinfer.fused_moe", "cutlass_fused_moe",
        ("input", "token_selected_experts", "token_final_scales", "fc1_expert_weights", "fc2_expert_weights",
         "output_dtype", "quant_scales", "output", "activation_type", "use_deepseek_fp8_block_scale"),
    ),
    Needed("flashinfer.fused_moe.core", "ActivationType.Swiglu"),
)  # fmt: skip


def load(needed: Sequence[Needed]) -> dict[str, Any] | str:
    """{name: object} of a table, or why there is none: `not installed`, the import's error, the missing argument."""
    package = needed[0].module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        return "not installed"
    found: dict[str, Any] = {}
    for one in needed:
        try:
            value: Any = importlib.import_module(one.module)
            for part in one.name.split("."):
                value = getattr(value, part)
        except Exception as error:  # an import runs anything, and the row says what it raised
            return (
                f"not in this {package} {_version(package)}: {one.module}.{one.name}: {type(error).__name__}: {error}"
            )
        if one.arguments:
            takes = inspect.signature(value).parameters
            lacking = [name for name in one.arguments if name not in takes]
            if lacking and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
                return f"{package} {_version(package)}: {one.name} takes no {', '.join(lacking)}"
        found[one.name] = value
    return found


def _version(package: str) -> str:
    try:
        return importlib.metadata.version({"flashinfer": "flashinfer-python"}.get(package, package))
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _on_card(needed: Sequence[Needed], tensor: torch.Tensor) -> dict[str, Any] | str:
    """`load`, after asking for the card: these packages are slow to import and useless without one."""
    if importlib.util.find_spec(needed[0].module.partition(".")[0]) is None:
        return "not installed"
    return load(needed) if tensor.is_cuda else "needs an NVIDIA card"


def marlin_int4(
    w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor, group_size: int, sets: int
) -> list[Run] | str:
    """vLLM's Marlin chain (align, sort, two products, activation, sum), gated silu: `sets` layers, the first is ours.

    w13 [E, 2I, H / 2] and w2 [E, H, I / 2] uint8, the low nibble first, zero point 8; scales [E, N, K / group]. Marlin
    takes bf16 scales with bf16 activations. The other layers are random bytes in its packing: they change no time.
    vLLM's own experts let the call make the lock words anew (a memset of 1.8 us); here they are made once.
    """
    found = _on_card(MARLIN, w13)
    if isinstance(found, str):
        return found
    kind = found["scalar_types"].uint4b8.id
    locks = found["marlin_make_workspace_new"](device=w13.device, max_blocks_per_sm=4)

    def laid(packed: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        experts, rows, half = packed.shape
        sizes = {"size_k": 2 * half, "size_n": rows}
        no_order = torch.empty((experts, 0), dtype=torch.int32, device=packed.device)
        words = gptq_words(packed)
        scales = scale.transpose(1, 2).to(torch.bfloat16).contiguous()
        return (
            found["gptq_marlin_moe_repack"](b_q_weight=words, perm=no_order, num_bits=4, **sizes),
            found["marlin_moe_permute_scales"](s=scales, group_size=group_size, **sizes),
        )

    def add_up(parts: torch.Tensor, out: torch.Tensor, *_: object) -> torch.Tensor:
        found["moe_sum"](input=parts, output=out)
        return out

    def bind(w1: torch.Tensor, s1: torch.Tensor, w2_: torch.Tensor, s2: torch.Tensor) -> Run:
        return lambda x, weights, ids: found["fused_marlin_moe"](
            hidden_states=x, w1=w1, w2=w2_, bias1=None, bias2=None, w1_scale=s1, w2_scale=s2, topk_weights=weights,
            topk_ids=ids, quant_type_id=kind, global_num_experts=w1.shape[0], moe_sum=add_up, workspace=locks,
        )  # fmt: skip

    first = (*laid(w13, w13_scale), *laid(w2, w2_scale))
    others = [(_noise(first[0]), first[1].clone(), _noise(first[2]), first[3].clone()) for _ in range(sets - 1)]
    return [bind(*layer) for layer in (first, *others)]


def gptq_words(packed: torch.Tensor) -> torch.Tensor:
    """[E, N, K / 2] uint8, low nibble first -> GPTQ's int32 [E, K / 8, N], eight values of k a word, lowest first."""
    return packed.contiguous().view(torch.int32).transpose(1, 2).contiguous()


def _noise(like: torch.Tensor) -> torch.Tensor:
    other = torch.empty_like(like)
    other.view(torch.uint8).random_(0, 256)
    return other


def triton_fp8_block(layers: Sequence[Fp8Layer], top_k: int, quantise: bool) -> list[Run] | str:
    """vLLM's Triton chain (two products, activation with quantisation, sum) on 128 x 128 scales, gated silu.

    With `quantise` x is bf16 and its quantisation, one launch, belongs to the chain; without, x is (codes, scales).
    """
    found = _on_card(TRITON, layers[0][0])
    if isinstance(found, str):
        return found
    silu = found["MoEActivation"].SILU

    def one(w13: torch.Tensor, s13: torch.Tensor, w2: torch.Tensor, s2: torch.Tensor) -> Run:
        experts, hidden, inter = w2.shape
        config = found["FusedMoEConfig"](
            num_experts=experts, experts_per_token=top_k, hidden_dim=hidden, intermediate_size=inter,
            num_local_experts=experts, num_logical_experts=experts, activation=silu, device=str(w13.device),
            routing_method=found["RoutingMethodType.MiniMax2"], in_dtype=torch.bfloat16,
            moe_parallel_config=found["FusedMoEParallelConfig.make_no_parallel"](),
        )  # fmt: skip
        quant = found["fp8_w8a8_moe_quant_config"](w1_scale=s13, w2_scale=s2, block_shape=[128, 128])
        chain = found["TritonExperts"](moe_config=config, quant_config=quant)

        def run(x: Any, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            if quantise:
                x = found["per_token_group_quant_fp8"](x=x, group_size=128, use_ue8m0=False)
            codes, scales = x
            shapes = chain.workspace_shapes(
                M=codes.shape[0], N=2 * inter, K=hidden, topk=top_k, global_num_experts=experts,
                local_num_experts=experts, expert_tokens_meta=None, activation=silu,
            )  # fmt: skip
            space13, space2, out = (torch.empty(s, dtype=torch.bfloat16, device=codes.device) for s in shapes)
            chain.apply(
                output=out, hidden_states=codes, w1=w13, w2=w2, topk_weights=weights, topk_ids=ids, activation=silu,
                global_num_experts=experts, expert_map=None, a1q_scale=scales, a2_scale=None, workspace13=space13,
                workspace2=space2, expert_tokens_meta=None, apply_router_weight_on_input=False,
            )  # fmt: skip
            return out

        return run

    return [one(*layer) for layer in layers]


def flashinfer_block(layers: Sequence[Fp8Layer]) -> list[Run] | str:
    """FlashInfer's CUTLASS chain with block scales, from bf16 x; it reads the halves of w13 as [up; gate]."""
    found = _on_card(FLASHINFER, layers[0][0])
    if isinstance(found, str):
        return found

    def one(w13: torch.Tensor, s13: torch.Tensor, w2: torch.Tensor, s2: torch.Tensor) -> Run:
        def run(x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            found["cutlass_fused_moe"](
                input=x, token_selected_experts=ids, token_final_scales=weights, fc1_expert_weights=w13,
                fc2_expert_weights=w2, output_dtype=torch.bfloat16, quant_scales=[s13, s2], output=out,
                activation_type=found["ActivationType.Swiglu"], use_deepseek_fp8_block_scale=True,
            )  # fmt: skip
            return out

        return run

    return [one(*layer) for layer in layers]
