"""Data types, attention backends, quantisation and speculation that the device or the model does not take."""

from __future__ import annotations

from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.rules.claims import is_judged
from xpu_moe.doctor.text import shown
from xpu_moe.formats.quantization import GROUP_SIZES

Hit = dict[str, Any]
_DTYPES = frozenset({"auto", "half", "float16", "bfloat16", "float", "float32"})
# vLLM config/cache.py, 0.26 and 0.32
_KV_ALL = frozenset({
    "auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4_ds_mla", "nvfp4",
    "nvfp4_4over6", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
    "ultraquant_4bit", "int4_per_token_head", "int8_per_token_head", "fp8_per_token_head",
})  # fmt: skip
_KV_XPU = frozenset({"auto", "float16", "bfloat16", "fp8", "fp8_e4m3"})
_KV_DOUBTFUL = frozenset({"fp8", "fp8_e4m3"})
# vLLM v1/attention/backends/registry.py, 0.32
_ATTENTION = frozenset({
    "AUTO", "FLASH_ATTN", "FLASH_ATTN_DIFFKV", "TRITON_ATTN", "TRITON_ATTN_DIFFKV", "TRITON_FLASH_ATTN", "ROCM_ATTN",
    "ROCM_AITER_MLA", "ROCM_AITER_TRITON_MLA", "ROCM_AITER_FA", "ROCM_AITER_MLA_SPARSE", "XPU_MLA_SPARSE", "TORCH_SDPA",
    "FLASHINFER", "TRITON_FLASHINFER", "FLASHINFER_MLA", "TOKENSPEED_MLA", "FLASHINFER_MLA_SPARSE", "TRITON_MLA",
    "CUTLASS_MLA", "FLASHMLA", "FLASHMLA_SPARSE", "FLASH_ATTN_MLA", "FLASH_ATTN_MLA_SPARSE", "NO_ATTENTION",
    "FLEX_ATTENTION", "ROCM_AITER_UNIFIED_ATTN", "CPU_ATTN", "CPU_MLA", "AMX_MLA", "TURBOQUANT", "ULTRAQUANT", "CUSTOM",
    "TREE_ATTN", "HPC_ATTN", "B12X", "MINIMAX_M3_SPARSE", "CUTLASS_MSA", "TRITON_MSA", "ROCM_SEGMENTED_ATTN",
})  # fmt: skip
_ATTENTION_XPU = frozenset({"AUTO", "FLASH_ATTN", "TRITON_ATTN"})
# vLLM platforms/xpu.py, 0.32, with the spellings of checkpoints
_QUANT_XPU = frozenset({
    "awq", "gptq", "moe_wna16", "auto_awq", "auto_gptq", "inc", "fp8", "mxfp4", "mxfp8", "fp8_per_tensor",
    "fp8_per_block", "fp8_per_channel", "online", "gpt_oss_mxfp4", "modelopt", "compressed-tensors", "auto-round",
    "auto_round", "autoround", "gptq_marlin", "awq_marlin", "deepseek_v4_fp8",
})  # fmt: skip
_SPECULATIVE = frozenset({
    "ngram", "ngram_gpu", "medusa", "mlp_speculator", "draft_model", "suffix", "custom_class", "eagle", "eagle3",
    "extract_hidden_states", "dflash", "dspark", "mtp",
})  # fmt: skip


def _dtype(context: Context) -> Hit | None:
    dtype = context.plan.dtype
    return {"dtype": shown(dtype)} if dtype and dtype not in _DTYPES else None


def _bfloat16(context: Context) -> Hit | None:
    """bfloat16, said or inherited from the checkpoint, on a card without it."""
    dtype = context.plan.dtype
    inherited = "bfloat16" in str(context.model.config.get("torch_dtype", context.model.config.get("dtype")))
    if dtype != "bfloat16" and not (dtype == "auto" and inherited):
        return None
    old = [gpu for gpu in context.cards if (card := context.kind(gpu)) and not card.bfloat16]
    return {"name": old[0].name or old[0].device_id} if old and context.device in ("xpu", "cuda") else None


def _float32(context: Context) -> bool:
    return context.xpu and context.plan.dtype in ("float32", "float")


def _bf16_cost(context: Context) -> bool:
    quant = context.shapes.quant if context.shapes else None
    return context.xpu and context.plan.dtype == "bfloat16" and bool(quant and quant.bits == 4) and context.minimax


def _kv_unknown(context: Context) -> Hit | None:
    dtype = context.plan.kv_cache_dtype
    if not dtype or dtype in _KV_ALL or context.xpu:
        return None
    return {"dtype": shown(dtype)}


def _kv_xpu(context: Context) -> Hit | None:
    dtype = context.plan.kv_cache_dtype
    return {"dtype": shown(dtype)} if context.xpu and dtype and dtype not in _KV_XPU else None


def _kv_fp8_xpu(context: Context) -> Hit | None:
    dtype = context.plan.kv_cache_dtype
    return {"dtype": dtype} if context.xpu and dtype in _KV_DOUBTFUL else None


def _kv_cuda(context: Context) -> Hit | None:
    """fp8_inc is Gaudi's; an FP8 checkpoint refuses e5m2; e4m3 in Triton wants compute capability 8.9."""
    dtype, quant = context.plan.kv_cache_dtype, context.shapes.quant if context.shapes else None
    if not context.cuda or not dtype or not dtype.startswith("fp8"):
        return None
    if dtype == "fp8_inc":
        return {"dtype": dtype, "says": "It is another vendor's format."}
    if dtype == "fp8_e5m2" and quant and quant.method == "fp8":
        return {"dtype": dtype, "says": "With an FP8 checkpoint vLLM refuses e5m2."}
    old = [card for card in map(context.kind, context.cards) if card and card.capability and card.capability < (8, 9)]
    if old and dtype in ("fp8", "fp8_e4m3"):
        triton = context.plan.attention_backend == "TRITON_ATTN"
        says = f"{old[0].name_part} has compute capability below 8.9: Triton's fp8e4nv is refused."
        return {"dtype": dtype, "says": says, "severity": "error" if triton else "warn"}
    return None


def _attention_unknown(context: Context) -> Hit | None:
    backend = context.plan.attention_backend
    return {"backend": shown(backend)} if backend and not context.xpu and backend not in _ATTENTION else None


def _attention_xpu(context: Context) -> Hit | None:
    backend = context.plan.attention_backend
    if not context.xpu or not backend or backend in _ATTENTION_XPU:
        return None
    latent = bool(context.shapes and context.shapes.latent)
    if "MLA" in backend and (latent or context.shapes is None) and backend in _ATTENTION:
        return None
    return {"backend": shown(backend)}


def _attention_other(context: Context) -> Hit | None:
    """Backends of another device, or for latent attention that the model does not have."""
    backend = context.plan.attention_backend
    if not backend or context.xpu or backend not in _ATTENTION:
        return None
    if context.device == "cpu" and backend not in ("AUTO", "CPU_ATTN", "CPU_MLA", "AMX_MLA"):
        return {"backend": backend, "says": "The CPU takes CPU_ATTN whatever is asked.", "severity": "warn"}
    if context.cuda and backend.startswith(("ROCM_", "CPU_", "XPU_", "AMX_")):
        return {"backend": backend, "says": "It is another device's."}
    if context.cuda and "MLA" in backend and context.shapes and not context.shapes.latent:
        return {"backend": backend, "says": "It is for latent attention, which this model does not have."}
    old = [card for card in map(context.kind, context.cards) if card and card.capability and card.capability < (8, 0)]
    if context.cuda and old and backend == "FLASH_ATTN":
        return {"backend": backend, "says": "FlashAttention wants compute capability 8.0 or later."}
    return None


def _moe_bits(context: Context) -> Hit | None:
    """Integer MoE weights on XPU: 4 bits, symmetric, in order."""
    shapes = context.shapes
    quant = shapes.quant if shapes else None
    if not context.xpu or shapes is None or quant is None or not shapes.moe or quant.number != "int":
        return None
    if is_judged(context) and not context.plan.quantization:  # `claims` asks the plugin itself
        return None
    if quant.bits != 4 and quant.bits < 16:
        return {"says": f"{quant.bits}-bit experts have no kernel on XPU, only 4-bit ones"}
    if quant.bits == 4 and quant.order:
        return {"says": "desc_act reorders columns by g_idx, which the MoE kernels do not take"}
    if quant.bits == 4 and not quant.symmetric:
        return {"says": "asymmetric weights need zero points, which the MoE kernels do not take"}
    return None


def _moe_group(context: Context) -> Hit | None:
    shapes = context.shapes
    quant = shapes.quant if shapes else None
    if not context.xpu or quant is None or not shapes or not shapes.moe or quant.number != "int" or quant.bits != 4:
        return None
    ours = quant.group in GROUP_SIZES
    says = "Ours take it as well, with more scales" if ours else f"Ours take {', '.join(map(str, GROUP_SIZES))}"
    return {"group": quant.group, "says": says} if quant.group != 128 else None


def _quant_method(context: Context) -> Hit | None:
    quant, raw = (context.shapes.quant if context.shapes else None), context.model.quantization
    if not context.xpu or quant is None:
        return None
    fp4 = next((w for w in (raw.get("quant_algo"), raw.get("format")) if "nvfp4" in str(w).lower()), None)
    if fp4 or quant.method not in _QUANT_XPU:
        return {"method": shown(str(fp4 or quant.method))}
    return None


def _speculative_unknown(context: Context) -> Hit | None:
    method = context.plan.speculative_method
    return {"method": shown(method)} if method and method not in _SPECULATIVE and not method.endswith("_mtp") else None


def _suffix(context: Context) -> bool:
    known = context.facts.packages is not None and context.package("vllm") is not None
    return context.plan.speculative_method == "suffix" and known and context.package("arctic-inference") is None


def _is_mtp(context: Context) -> bool:
    method = context.plan.speculative_method or ""
    return method == "mtp" or method.endswith("_mtp")


def _mtp(context: Context) -> Hit | None:
    """A draft layer needs its tensors; MiniMax-M2 has no MTP in vLLM at all."""
    if not _is_mtp(context):
        return None
    shapes, names = context.shapes, context.model.tensor_names
    if shapes is not None and names is not None:
        extra = tuple(f"layers.{layer}." for layer in range(shapes.layers, shapes.layers + 8))
        if not any("mtp" in name.lower() or "nextn" in name.lower() or any(e in name for e in extra) for name in names):
            return {"says": "the checkpoint has no tensors of the draft layers, whatever config.json advertises"}
    return {"says": "vLLM 0.26 and 0.32 know no MTP for MiniMax-M2"} if context.minimax else None


def _ngram(context: Context) -> Hit | None:
    method = context.plan.speculative_method
    if not context.xpu or method not in ("ngram", "ngram_gpu"):
        return None
    proved = context.minimax and context.several
    return {"method": method, "severity": "error" if proved or method == "ngram_gpu" else "warn"}


def _dflash(context: Context) -> bool:
    return context.xpu and context.plan.speculative_method == "dflash"


RULE = Rule(
    "data type, backend, quantisation or speculation not supported",
    "What the device, the installed vLLM or the model does not take.",
    (
        Row(
            "type.dtype", "error", "plan.dtype",
            "{dtype} is no data type of vLLM",
            "It knows auto, float16, bfloat16, float32.",
            "--dtype float16",
            "vLLM arguments", _dtype,
        ),
        Row(
            "type.bfloat16", "error", "plan.dtype",
            "{name} has no bfloat16",
            "vLLM refuses it there.",
            "--dtype float16",
            "B70 field notes 11; vLLM platforms", _bfloat16,
        ),
        Row(
            "type.float32", "warn", "plan.dtype",
            "float32 on XPU",
            "FLASH_ATTN does not take it: TRITON_ATTN made 13.07 against 34.58 tok/s, and activations and KV double.",
            "--dtype float16",
            "vLLM platforms/xpu.py", _float32,
        ),
        Row(
            "type.bfloat16-cost", "info", "plan.dtype",
            "bfloat16 costs 1.5 to 2.6 % here",
            "33.7 against 34.6 tok/s.",
            "--dtype float16",
            "B70 u4 decode note", _bf16_cost,
        ),
        Row(
            "type.kv-unknown", "error", "plan.kv_cache_dtype",
            "{dtype} is no KV data type of vLLM",
            "vLLM refuses it.",
            "--kv-cache-dtype auto",
            "vLLM config/cache.py", _kv_unknown,
        ),
        Row(
            "type.kv-xpu", "error", "plan.kv_cache_dtype",
            "KV data type {dtype} is refused on XPU",
            "The worker ends with 'Unsupported data type of kv cache'; e4m3 is the only 8-bit one.",
            "--kv-cache-dtype auto",
            "B70 u4 decode note; vLLM platforms/xpu.py", _kv_xpu,
        ),
        Row(
            "type.kv-fp8-xpu", "warn", "plan.kv_cache_dtype",
            "KV in {dtype} is unproved on XPU",
            "It starts; sampling timed out on four B70, and a B50 computed wrong values.",
            "--kv-cache-dtype auto",
            "vllm-project/vllm#45540; B70 field notes 9", _kv_fp8_xpu,
        ),
        Row(
            "type.kv-cuda", "error", "plan.kv_cache_dtype",
            "KV data type {dtype} does not go here",
            "{says}",
            "--kv-cache-dtype auto",
            "B70 field notes 12; vLLM", _kv_cuda,
        ),
        Row(
            "type.attention-unknown", "error", "plan.attention_backend",
            "{backend} is no attention backend of vLLM",
            "vLLM refuses it before loading.",
            "leave --attention-backend away",
            "vLLM attention registry", _attention_unknown,
        ),
        Row(
            "type.attention-xpu", "error", "plan.attention_backend",
            "{backend} does not exist on XPU",
            "XPU has FLASH_ATTN and TRITON_ATTN, and the MLA family for latent attention; others raise.",
            "leave --attention-backend away",
            "vLLM platforms/xpu.py", _attention_xpu,
        ),
        Row(
            "type.attention-other", "error", "plan.attention_backend",
            "{backend} cannot serve here",
            "{says}",
            "leave --attention-backend away",
            "vLLM attention registry", _attention_other,
        ),
        Row(
            "type.moe-bits", "error", "model.quantization_config",
            "this quantisation of the experts has no kernel on XPU",
            "{says}.",
            "take a 4-bit symmetric checkpoint of group 128",
            "B70 cookbook#10; B70 field notes 5, 12", _moe_bits,
        ),
        Row(
            "type.moe-group", "warn", "model.quantization_config",
            "group size {group}: the proved checkpoints have 128",
            "Others' kernels for these cards want 128. {says}.",
            "take a checkpoint of group 128",
            "B70 field notes 5, 12", _moe_group,
        ),
        Row(
            "type.quant-method", "error", "model.quantization_config",
            "{method} is not supported on XPU",
            "vLLM's XPU platform has a fixed list of methods.",
            "take an AutoRound or GPTQ 4-bit checkpoint",
            "vLLM 0.32 platforms/xpu.py", _quant_method,
        ),
        Row(
            "type.speculative-unknown", "error", "plan.speculative_method",
            "{method} is no speculation of vLLM",
            "vLLM refuses it before loading.",
            "start without --speculative-config",
            "vLLM config/speculative.py", _speculative_unknown,
        ),
        Row(
            "type.suffix", "error", "plan.speculative_method",
            "suffix speculation needs arctic-inference",
            "The package is not installed.",
            "pip install arctic-inference, or start without --speculative-config",
            "vLLM 0.26, 0.32", _suffix,
        ),
        Row(
            "type.mtp", "error", "plan.speculative_method",
            "no multi-token prediction here",
            "{says}.",
            "start without --speculative-config",
            "MiniMax-AI/MiniMax-M2.7#16; vLLM", _mtp,
        ),
        Row(
            "type.ngram", "error", "plan.speculative_method",
            "{method} speculation stalls on XPU",
            "On four B70 a worker was terminated with 'cancelled' while it sampled; on the CPU it brought nothing.",
            "start without --speculative-config",
            "B70 u4 decode note", _ngram,
        ),
        Row(
            "type.dflash", "warn", "plan.speculative_method",
            "a DFlash draft brought no gain",
            "Tried on four B70.",
            "start without --speculative-config",
            "B70 field notes 9", _dflash,
        ),
    ),
)  # fmt: skip
