"""Graphs: what they need, and what they exclude. XPU only: CUDA's graphs are vLLM's daily bread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xpu_moe.doctor.finding import Severity
from xpu_moe.doctor.rules.base import Context, Row, Rule

Hit = dict[str, Any]
LONGEST_CAPTURE = 8  # capture at 16 ended in OUT_OF_RESOURCES (xpu-kernels#509)
MOST_CAPTURES = 8
GIB = 1 << 30
_GRAPH_POOL = int(1.15 * GIB)


@dataclass(frozen=True)
class Need:
    """With `ranges` of `component` (and several cards, or an INT4 MoE) a plan with graphs is refused or doubtful."""

    component: str
    ranges: str
    severity: Severity
    says: str
    source: str
    several: bool = False
    int4_moe: bool = False
    torch: str = ""


NEEDS: tuple[Need, ...] = (
    Need("oneccl", "<2022.0", "error", "capture of XCCL collectives needs oneCCL 2022.0 or later",
         "intel/torch-xpu-ops#3570", several=True),
    Need("vllm", "<0.26", "error", "0.21 switches graphs off with several cards, older ones assert a CUDA communicator",
         "vLLM platforms/xpu.py; B70 u4 decode note", several=True),
    Need("vllm", "<0.17", "error", "this vLLM has no XPU graphs", "vLLM platforms/xpu.py"),
    Need("torch", "<2.11", "error", "XPU graphs need torch 2.11 or later", "vLLM 0.26 platforms/xpu.py"),
    Need("vllm", ">=0.31", "warn", "crashes in capture with several cards are open; set cudagraph_mode explicitly",
         "vllm#58388, #60379, #56917", several=True),
    Need("xpu-kernels", "<0.1.15", "warn", "an atomic counter of the INT4 MoE was not zeroed on replay: wrong tokens",
         "vllm-xpu-kernels#586, #524", int4_moe=True),
    Need("compute-runtime", "<26.27", "error", "torch 2.14 records by Level Zero: compute-runtime 26.27 or later",
         "intel-b70 facts 10", torch=">=2.14"),
    Need("loader", "<1.32", "error", "torch 2.14 records by Level Zero: loader 1.32 or later", "intel-b70 facts 10",
         torch=">=2.14"),
    Need("oneapi", "<2026.1.1", "error", "torch 2.14 graphs need oneAPI 2026.1.1",
         "intel-b70 facts 10", torch=">=2.14"),
    Need("oneccl", "<2022.1.2", "error", "torch 2.14 graphs need oneCCL 2022.1.2", "intel-b70 facts 10", several=True,
         torch=">=2.14"),
)  # fmt: skip


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
        if need.torch and not context.has("torch", need.torch):
            continue
        if context.has(need.component, need.ranges):
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
    left = memory * 95 // 100 - weights - _GRAPH_POOL
    if left >= 4 * need:
        return None
    return {"left": f"{left / GIB:.2f}", "need": f"{need / GIB:.2f}"}


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
        Row("graph.needs", "error", "plan.graph", "graphs need what is not here", "{says}.",
            "start without graphs (--enforce-eager or cudagraph_mode NONE), or upgrade", "table of needs", _needs),
        Row("graph.variable", "warn", "env.VLLM_XPU_ENABLE_XPU_GRAPH",
            "the plan wants a graph, the variable is {value}",
            "vLLM {version} takes graphs on XPU only with VLLM_XPU_ENABLE_XPU_GRAPH=1, and says so in one line.",
            "export VLLM_XPU_ENABLE_XPU_GRAPH=1", "vLLM platforms/xpu.py", _variable, ("plan.graph",)),
        Row("graph.captures", "warn", "plan.cudagraph_capture_sizes", "{says} {largest}",
            "Each size holds command lists and memory: long lists end in OUT_OF_RESOURCES or in '!!!!'.",
            "--compilation-config '{\"cudagraph_capture_sizes\": [1, 2, 4]}'",
            "intel/llm-scaler#698; vllm-xpu-kernels#509", _captures, ("plan.graph",)),
        Row("graph.kv-automatic", "warn", "plan.kv_cache_memory_bytes", "the KV size is left to vLLM, beside graphs",
            "Graphs take 1.15 GiB that its estimate does not see: {left} GiB are left, one sequence needs {need}.",
            "--kv-cache-memory-bytes 256M", "B70 u4 decode note; kv_points", _auto_kv, ("plan.graph",)),
        Row("graph.batched-tokens", "warn", "plan.max_num_batched_tokens",
            "{tokens} batched tokens in the graph recipe",
            "512 is proved; at 768 the six-prompt check failed.", "--max-num-batched-tokens 512", "intel-b70 facts 9",
            _batch, ("plan.graph",)),
        Row("graph.old-adapter", "warn", "env.SYCL_UR_USE_LEVEL_ZERO_V2",
            "the old adapter and graphs exclude each other",
            "Only the v2 Level Zero adapter records natively.",
            "unset SYCL_UR_USE_LEVEL_ZERO_V2, or start without graphs",
            "intel/llm-scaler documents", _old_adapter),
        Row("graph.segments", "warn", "env.{name}", "expandable segments on XPU",
            "They do not mix with IPC handles between cards, nor with graph pools.", "unset {name}",
            "PyTorch documentation", _segments),
        Row("graph.undecided", "warn", "plan.graph", "graphs are on by default here",
            "With several cards crashes in capture are open; decide it.", "cudagraph_mode in --compilation-config",
            "vllm#58388", _undecided),
    ),
)  # fmt: skip
