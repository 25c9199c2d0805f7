"""Graphs: what they need, and what they exclude. XPU only: CUDA's graphs are vLLM's daily bread."""

from __future__ import annotations

from typing import Any

from xpu_moe.doctor.finding import Severity
from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.env.versions import satisfies
from xpu_moe.plan.cards import BY_KEY
from xpu_moe.plan.graph_needs import NEEDS

Hit = dict[str, Any]
LONGEST_CAPTURE = 8  # capture at 16 ended in OUT_OF_RESOURCES (xpu-kernels#509)
MOST_CAPTURES = 8
GIB = 1 << 30
_B70 = BY_KEY["b70"]


def _on(context: Context) -> bool:
    return context.xpu and context.graph


def _int4_moe(context: Context) -> bool:
    shapes = context.shapes
    return shapes is not None and shapes.moe and shapes.quant is not None and shapes.quant.bits == 4


def _needs(context: Context) -> list[Hit]:
    """All needs that fail, in one finding: they are about one setting."""
    failed = []
    for need in NEEDS if _on(context) else ():
        if (need.several and not context.several) or (need.int4_moe and not _int4_moe(context)):
            continue
        torch, have = context.version("torch"), context.version(need.component)
        if need.torch and not (torch and satisfies(torch, need.torch)):
            continue
        if have and satisfies(have, need.ranges):
            failed.append(need)
    if not failed:
        return []
    worst: Severity = "error" if any(need.severity == "error" for need in failed) else "warn"
    says = "; ".join(f"{need.component} {context.version(need.component)}: {need.says}" for need in failed)
    return [{"says": says, "severity": worst, "source": "; ".join(dict.fromkeys(need.source for need in failed))}]


def _variable(context: Context) -> Hit | None:
    """vLLM up to 0.30 takes a graph only with its variable."""
    value = context.facts.value("VLLM_XPU_ENABLE_XPU_GRAPH")
    wanted = context.xpu and context.plan.graph is True and context.has("vllm", ">=0.17,<0.31")
    if not wanted or context.facts.env is None or value not in (None, "0"):
        return None
    return {"version": context.version("vllm"), "value": "unset" if value is None else value}


def _captures(context: Context) -> Hit | None:
    sizes, seqs = context.plan.cudagraph_capture_sizes, context.plan.max_num_seqs
    if not _on(context):
        return None
    if sizes is None:
        largest = min(2 * seqs, 512) if seqs else 0
        severity = "warn" if context.plan.graph else "info"
        hit = {"largest": largest, "says": "the default list goes up to", "severity": severity}
        return hit if largest > LONGEST_CAPTURE else None
    if sizes and (max(sizes) > LONGEST_CAPTURE or len(sizes) > MOST_CAPTURES):
        return {"largest": max(sizes), "says": "the list goes up to"}
    return None


def _auto_kv(context: Context) -> Hit | None:
    """vLLM's own sizing leaves too little beside the graphs where the weights fill the card."""
    plan, weights, memory, token = context.plan, context.weights, context.memory, context.kv_token
    if not _on(context) or plan.kv_cache_memory_bytes or not (weights and memory and token and plan.max_model_len):
        return None
    need = plan.max_model_len * token
    card = context.kind(context.cards[0]) or _B70
    left = memory * 95 // 100 - weights - card.graph_pool - card.reserve
    if left >= 4 * need:
        return None
    return {"pool": f"{card.graph_pool / GIB:.2f}", "left": f"{max(0, left) / GIB:.2f}", "need": f"{need / GIB:.2f}"}


def _batch(context: Context) -> Hit | None:
    tokens = context.plan.max_num_batched_tokens
    wide = _on(context) and context.minimax and context.several and tokens is not None and tokens > 512
    return {"tokens": tokens} if wide else None


def _old_adapter(context: Context) -> bool:
    return _on(context) and context.facts.value("SYCL_UR_USE_LEVEL_ZERO_V2") == "0"


def _segments(context: Context) -> list[Hit]:
    """Expandable segments with IPC handles between cards."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_XPU_ALLOC_CONF")
    found = [name for name in names if "expandable_segments:true" in (context.facts.value(name) or "").lower()]
    return [{"name": name} for name in found if context.xpu and (context.several or context.graph)]


def _undecided(context: Context) -> bool:
    plan = context.plan
    return context.graph and plan.graph is None and context.several and not _needs(context)


RULE = Rule(
    "graph: needs, capture list, exclusions",
    "Wrong tokens are worse than slow ones: a graph is refused or doubted where its needs are not met.",
    (
        Row(
            "graph.needs", "error", "plan.graph",
            "graphs need what is not here",
            "{says}.",
            "start without graphs (--enforce-eager or cudagraph_mode NONE), or upgrade",
            "table of needs", _needs,
        ),
        Row(
            "graph.variable", "warn", "env.VLLM_XPU_ENABLE_XPU_GRAPH",
            "the plan wants a graph, the variable is {value}",
            "vLLM {version} takes graphs on XPU only with VLLM_XPU_ENABLE_XPU_GRAPH=1, and says so in one line.",
            "export VLLM_XPU_ENABLE_XPU_GRAPH=1",
            "vLLM platforms/xpu.py", _variable, ("plan.graph",),
        ),
        Row(
            "graph.captures", "warn", "plan.cudagraph_capture_sizes",
            "{says} {largest}",
            "Each size holds command lists and memory: long lists end in OUT_OF_RESOURCES or in '!!!!'.",
            "--compilation-config '{\"cudagraph_capture_sizes\": [1, 2, 4]}'",
            "intel/llm-scaler#698; vllm-xpu-kernels#509", _captures, ("plan.graph",),
        ),
        Row(
            "graph.kv-automatic", "warn", "plan.kv_cache_memory_bytes",
            "the KV size is left to vLLM, beside graphs",
            "Graphs take about {pool} GiB more than it sees: {left} GiB are left, one sequence needs {need}.",
            "--kv-cache-memory-bytes 256M",
            "B70 u4 decode note; kv_points", _auto_kv, ("plan.graph",),
        ),
        Row(
            "graph.batched-tokens", "warn", "plan.max_num_batched_tokens",
            "{tokens} batched tokens in the graph recipe",
            "512 is proved; at 768 the six-prompt check failed.",
            "--max-num-batched-tokens 512",
            "B70 field notes 9", _batch, ("plan.graph",),
        ),
        Row(
            "graph.old-adapter", "warn", "env.SYCL_UR_USE_LEVEL_ZERO_V2",
            "the old adapter and graphs exclude each other",
            "Only the v2 Level Zero adapter records natively.",
            "unset SYCL_UR_USE_LEVEL_ZERO_V2, or start without graphs",
            "intel/llm-scaler documents", _old_adapter,
        ),
        Row(
            "graph.segments", "warn", "env.{name}",
            "expandable segments on XPU",
            "They do not mix with IPC handles between cards, nor with graph pools.",
            "unset {name}",
            "PyTorch documentation", _segments,
        ),
        Row(
            "graph.undecided", "warn", "plan.graph",
            "graphs are on by default here",
            "With several cards crashes in capture are open; decide it.",
            "cudagraph_mode in --compilation-config",
            "vllm#58388", _undecided,
        ),
    ),
)  # fmt: skip
