"""Plans measured slower, or seen to hang, on four B70: a table of what was tried, with its figure.

Figures measured without graphs say nothing about a plan with graphs, so those rows are silent there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xpu_moe.doctor.finding import Severity
from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.rules.splits import tp_problem

Hit = dict[str, Any]
_NOTE = "B70 u4 decode note; B70 field notes 9"


@dataclass(frozen=True)
class Tried:
    """`field` of the plan at a value for which `holds` is true; `minimax` = only for that model at several cards."""

    field: str
    holds: Callable[[Any], bool]
    says: str
    fix: str
    severity: Severity = "warn"
    with_graph: bool = False
    minimax: bool = False


TRIED: tuple[Tried, ...] = (
    Tried("attention_backend", lambda v: v == "TRITON_ATTN", "13.07 against 34.58 tok/s with FLASH_ATTN",
          "leave --attention-backend away"),
    Tried("block_size", lambda v: v >= 128 and v % 64 == 0,
          "128: 24.0 against 34.58 tok/s; the attention kernel's own block is 64",
          "--block-size 64"),
    Tried("max_model_len", lambda v: v == 1024,
          "24.3 against 34.6 tok/s at 2048, which leaves 1.02 GiB for KV instead of 0.56",
          "--max-model-len 2048", minimax=True),
    Tried("max_model_len", lambda v: v == 4096,
          "29.8 against 37.1 tok/s at 2048, which leaves 1.02 GiB for KV instead of 0.56",
          "--max-model-len 2048", minimax=True),
    Tried("max_model_len", lambda v: v < 2048 and v != 1024,
          "2048 is the proved length; 1024 ran at 24.3 against 34.6 tok/s",
          "--max-model-len 2048", minimax=True),
    Tried("max_model_len", lambda v: v > 4096 or 2048 < v < 4096,
          "2048 is the proved length; 4096 ran at 29.8 against 37.1 tok/s",
          "--max-model-len 2048 where the prompts allow it", "info", minimax=True),
    Tried("max_num_batched_tokens", lambda v: v == 768, "at 768 the six-prompt check failed",
          "--max-num-batched-tokens 512 or 1024",
          minimax=True),
)  # fmt: skip


def _tried(context: Context) -> list[Hit]:
    hits: list[Hit] = []
    if not context.xpu:
        return hits
    for row in TRIED:
        value = getattr(context.plan, row.field)
        if value is None or (context.graph and not row.with_graph) or not row.holds(value):
            continue
        if row.minimax and not (context.minimax and context.several):
            continue
        hits.append({"field": row.field, "value": value, "says": row.says, "fix": row.fix, "severity": row.severity})
    return hits


def _block(context: Context) -> Hit | None:
    block = context.plan.block_size
    return {"block": block} if context.xpu and block and block % 64 else None


def _pipeline(context: Context) -> Hit | None:
    """Stages instead of slices, where slices over all cards were possible."""
    plan, world = context.plan, context.facts.world
    if not context.xpu or context.graph or not plan.tp or not plan.pp or plan.pp == 1 or world is None:
        return None
    return {"pp": plan.pp, "tp": plan.tp, "world": world} if not tp_problem(context, world) else None


def _experts(context: Context) -> bool:
    moe = context.shapes is None or context.shapes.moe
    return context.xpu and context.several and moe and bool(context.plan.enable_expert_parallel)


def _profiler(context: Context) -> bool:
    return context.xpu and (context.plan.profiler == "torch" or bool(context.facts.value("VLLM_TORCH_PROFILER_DIR")))


def _prefix(context: Context) -> bool:
    return context.xpu and context.plan.enable_prefix_caching is False and not context.graph


def _deep_gemm_arch(context: Context) -> Hit | None:
    """DeepGEMM has recipes for sm_90 and sm_100 only."""
    quant = context.shapes.quant if context.shapes else None
    value = context.facts.value("VLLM_USE_DEEP_GEMM")
    other = [
        card for card in map(context.kind, context.cards) if card and card.capability not in ((9, 0), (10, 0), None)
    ]
    if not context.cuda or not other or value == "0" or (value is None and not (quant and quant.method == "fp8")):
        return None
    old = value is None and (other[0].capability or (0, 0)) < (9, 0)  # vLLM itself leaves DeepGEMM out there
    capability = ".".join(map(str, other[0].capability or ()))
    return None if old else {"value": value or "unset", "capability": capability}


def _deep_gemm_moe(context: Context) -> Hit | None:
    quant = context.shapes.quant if context.shapes else None
    value = context.facts.value("VLLM_MOE_USE_DEEP_GEMM")
    named = [
        card.name_part
        for card in map(context.kind, context.cards)
        if card and card.key in ("h20", "h100", "h100-pcie", "h800")
    ]
    fp8 = context.minimax and quant is not None and quant.method == "fp8"
    if not context.cuda or not fp8 or not named or value == "0":
        return None
    return {"value": value or "unset", "card": named[0]}


def _cpu_space(context: Context) -> bool:
    return (
        context.device == "cpu"
        and bool(context.plan.kv_cache_memory_bytes)
        and bool(context.facts.value("VLLM_CPU_KVCACHE_SPACE"))
    )


RULE = Rule(
    "plan measured slower",
    "Tried by others with MiniMax-M2.x, or on these cards, and lost; the figure is in the reason.",
    (
        Row(
            "slower.tried", "warn", "plan.{field}",
            "{field} {value} was measured slower",
            "{says} (4xB70, no graphs).",
            "{fix}",
            "B70 u4 decode note; B70 field notes 9", _tried,
        ),
        Row(
            "slower.block", "error", "plan.block_size",
            "a KV block of {block} tokens",
            "On XPU blocks are multiples of 64.",
            "--block-size 64",
            "vLLM platforms/xpu.py", _block,
        ),
        Row(
            "slower.pipeline", "warn", "plan.pp",
            "{pp} pipeline stages of {tp} slices instead of {world} slices",
            "17.55 against 34.58 tok/s: at batch 1 stages wait for each other.",
            "--tensor-parallel-size {world} --pipeline-parallel-size 1",
            "B70 u4 decode note; B70 field notes 9", _pipeline,
        ),
        Row(
            "slower.experts", "warn", "plan.enable_expert_parallel",
            "expert parallelism on XPU",
            "The uneven allgatherv hung in warm-up (a padded variant runs); with DP4 it made 4.3 tok/s.",
            "leave --enable-expert-parallel away",
            "steveseguin/llm-optimizations; B70 field notes 9", _experts,
        ),
        Row(
            "slower.profiler", "warn", "plan.profiler",
            "the torch profiler stalls on XPU",
            "With XPU activities the workers stood still and no trace was written.",
            "start without the profiler",
            "B70 u4 decode note; B70 field notes 9", _profiler,
        ),
        Row(
            "slower.prefix", "info", "plan.enable_prefix_caching",
            "prefix caching is off",
            "34.01 against 34.58 tok/s.",
            "leave prefix caching on (without graphs)",
            "B70 u4 decode note; B70 field notes 9", _prefix,
        ),
        Row(
            "slower.deep-gemm", "error", "env.VLLM_USE_DEEP_GEMM",
            "DeepGEMM ({value}) on compute capability {capability}",
            "It has recipes for 9.0 and 10.0 only: the first forward pass fails.",
            "export VLLM_USE_DEEP_GEMM=0",
            "vLLM issues; B70 field notes 12", _deep_gemm_arch,
        ),
        Row(
            "slower.deep-gemm-moe", "warn", "env.VLLM_MOE_USE_DEEP_GEMM",
            "DeepGEMM ({value}) for MiniMax's experts on {card}",
            "Slower or failing there.",
            "export VLLM_MOE_USE_DEEP_GEMM=0",
            "vllm-project/recipes#120", _deep_gemm_moe,
        ),
        Row(
            "slower.cpu-space", "warn", "env.VLLM_CPU_KVCACHE_SPACE",
            "it wins over --kv-cache-memory-bytes",
            "On the CPU the variable (GiB) is taken and the flag is not.",
            "unset VLLM_CPU_KVCACHE_SPACE",
            "seen with vLLM 0.32", _cpu_space,
        ),
    ),
)  # fmt: skip
