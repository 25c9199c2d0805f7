"""A plan that the model forbids: divisibility, lengths, KV bytes, speculation."""

from __future__ import annotations

from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.plan.split import problem

Hit = dict[str, Any]
GIB = 1 << 30


def tp_problem(context: Context, tp: int) -> str:
    """Why the model cannot be cut into `tp` slices; "" where it can, or where nobody knows."""
    if context.shapes is None:
        return ""
    parallel_experts = bool(context.plan.enable_expert_parallel)
    return problem(context.shapes, tp, expert_parallel=parallel_experts, finer=context.has("vllm", ">=0.32"))


def _tp(context: Context) -> Hit | None:
    says = tp_problem(context, context.plan.tp) if context.plan.tp else ""
    good = [n for n in (1, 2, 4, 8) if not tp_problem(context, n)] if says else []
    return {"tp": context.plan.tp, "says": says, "good": ", ".join(map(str, good))} if says else None


def _pp(context: Context) -> Hit | None:
    pp, shapes = context.plan.pp, context.shapes
    return {"pp": pp, "layers": shapes.layers} if shapes and pp and pp > shapes.layers else None


def _dcp(context: Context) -> Hit | None:
    """vLLM: dcp divides tp; for grouped-query attention tp > KV heads, and dcp at most tp / KV heads."""
    dcp, tp, shapes = context.plan.dcp, context.plan.tp, context.shapes
    if not dcp or dcp == 1 or not tp:
        return None
    if tp % dcp:
        return {"dcp": dcp, "says": f"tensor parallel size {tp} does not divide by it"}
    if shapes is None or shapes.latent:
        return None
    if tp <= shapes.kv_heads:
        return {"dcp": dcp, "says": f"tensor parallel size {tp} must be greater than the {shapes.kv_heads} KV heads"}
    if dcp > tp // shapes.kv_heads:
        return {"dcp": dcp, "says": f"at most tp / KV heads = {tp // shapes.kv_heads}"}
    return None


def _kv_bytes(context: Context) -> Hit | None:
    """A pinned KV size that does not hold one sequence of max_model_len, in whole blocks."""
    given, length, token = context.plan.kv_cache_memory_bytes, context.plan.max_model_len, context.kv_token
    if given is None or (given == 0 and context.device != "cpu"):
        return None
    if given <= 0:
        return {"given": given, "need": "more than 0", "fix": 1 << 28}
    if length is None or token is None:
        return None
    block = context.plan.block_size or 1
    need = -(-length // block) * block * token
    return {"given": given, "need": need, "fix": need} if given < need else None


def _kv_beyond(context: Context) -> Hit | None:
    given, weights, memory = context.plan.kv_cache_memory_bytes, context.weights_least, context.memory
    if not given or given <= 0 or weights is None or memory is None or context.device == "cpu" or weights >= memory:
        return None
    if weights + given <= memory:
        return None
    return {"given": f"{given / GIB:.2f}", "left": f"{(memory - weights) / GIB:.2f}"}


def _length_memory(context: Context) -> Hit | None:
    """One sequence of max_model_len beside the weights. A pinned KV size has its own row."""
    token, length = context.kv_token, context.plan.max_model_len
    weights, memory = context.weights_least, context.memory
    if None in (weights, memory, token, length) or context.device == "cpu" or context.plan.kv_cache_memory_bytes:
        return None
    assert weights is not None and memory is not None and token is not None and length is not None
    if weights >= memory or weights + token * length <= memory * 97 // 100:
        return None
    severity = "error" if weights + token * length > memory else "warn"
    fits = (memory * 97 // 100 - weights) // token
    return {"length": length, "need": f"{token * length / GIB:.1f}", "fits": max(0, fits), "severity": severity}


def _length_model(context: Context) -> Hit | None:
    length, shapes = context.plan.max_model_len, context.shapes
    if shapes is None or length is None or shapes.max_positions is None or length <= shapes.max_positions:
        return None
    if context.model.config.get("rope_scaling") or context.model.config.get("rope_parameters"):
        return None
    lifted = (context.facts.value("VLLM_ALLOW_LONG_MAX_MODEL_LEN") or "").lower() in ("1", "true")
    return {"length": length, "most": shapes.max_positions, "severity": "warn" if lifted else "error"}


def _batch(context: Context) -> Hit | None:
    tokens, seqs = context.plan.max_num_batched_tokens, context.plan.max_num_seqs
    return {"tokens": tokens, "seqs": seqs} if tokens and seqs and tokens < seqs else None


def _chunked(context: Context) -> Hit | None:
    plan = context.plan
    if plan.enable_chunked_prefill is not False or not plan.max_num_batched_tokens or not plan.max_model_len:
        return None
    if plan.max_num_batched_tokens >= plan.max_model_len:
        return None
    return {"tokens": plan.max_num_batched_tokens, "length": plan.max_model_len}


RULE = Rule(
    "plan the model forbids",
    "Arithmetic that the model's shapes decide before anything is loaded.",
    (
        Row(
            "plan.tp", "error", "plan.tp",
            "the model cannot be cut into {tp} tensor-parallel slices",
            "{says}.",
            "--tensor-parallel-size: possible here are {good}",
            "vllm-project/recipes#96; config.json", _tp,
        ),
        Row(
            "plan.pp", "error", "plan.pp",
            "{pp} stages for {layers} layers",
            "A stage needs a layer.",
            "--pipeline-parallel-size 1",
            "config.json", _pp,
        ),
        Row(
            "plan.dcp", "error", "plan.dcp",
            "decode context parallel size {dcp} is impossible",
            "{says}.",
            "--decode-context-parallel-size 1",
            "vLLM 0.26, 0.32; B70 u4 decode note", _dcp,
        ),
        Row(
            "plan.kv-bytes", "error", "plan.kv_cache_memory_bytes",
            "{given} bytes of KV do not hold one full sequence",
            "max_model_len in whole blocks needs {need} bytes on each rank.",
            "--kv-cache-memory-bytes {fix}",
            "kv_points (63,488 bytes a token for MiniMax at TP4)", _kv_bytes,
        ),
        Row(
            "plan.kv-bytes-beyond", "error", "plan.kv_cache_memory_bytes",
            "{given} GiB of KV, {left} GiB beside the weights",
            "Weights and KV together are more than a card holds.",
            "lower --kv-cache-memory-bytes",
            "B70 field notes 3", _kv_beyond,
        ),
        Row(
            "plan.length-memory", "error", "plan.max_model_len",
            "one sequence of {length} tokens does not fit",
            "It needs {need} GiB of KV on each rank beside the weights.",
            "--max-model-len {fits} or less",
            "B70 field notes 3, 12", _length_memory, ("gpus", "plan.tp"),
        ),
        Row(
            "plan.length-model", "error", "plan.max_model_len",
            "{length} tokens, the model was made for {most}",
            "vLLM refuses a length above the model's own maximum.",
            "--max-model-len {most}",
            "vLLM", _length_model,
        ),
        Row(
            "plan.batch", "error", "plan.max_num_batched_tokens",
            "{tokens} batched tokens for {seqs} sequences",
            "vLLM refuses fewer tokens than sequences.",
            "--max-num-batched-tokens {seqs} or more",
            "vLLM scheduler", _batch,
        ),
        Row(
            "plan.chunked-prefill", "error", "plan.enable_chunked_prefill",
            "chunked prefill is off, the batch is short",
            "{tokens} batched tokens are less than max_model_len {length}: vLLM refuses that.",
            "leave chunked prefill on",
            "B70 u4 decode note", _chunked,
        ),
    ),
)  # fmt: skip
