"""Parsers: of another model, or unknown to the installed vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.text import shown

Hit = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """Which parsers fit a model: `kinds` are beginnings of model_type."""

    kinds: tuple[str, ...]
    tool: tuple[str, ...]
    reasoning: tuple[str, ...]


FAMILIES: tuple[Family, ...] = (
    Family(("minimax_m2",), ("minimax_m2",), ("minimax_m2", "minimax_m2_append_think")),
    Family(("minimax_m3",), ("minimax_m3",), ("minimax_m3",)),
    Family(("qwen3",), ("hermes", "qwen3_coder", "qwen3_xml", "qwen3_json"), ("qwen3", "deepseek_r1")),
    Family(("qwen2",), ("hermes",), ("deepseek_r1", "qwen3")),
    Family(("glm4",), ("glm45", "glm47"), ("glm45", "glm47")),
    Family(("gpt_oss",), ("openai",), ("openai_gptoss", "openai")),
    Family(("kimi_k2",), ("kimi_k2",), ("kimi_k2", "deepseek_r1")),
)
# names that vLLM 0.32.0 registers, with those that 0.26 and earlier had besides
_TOOL = frozenset({
    "apertus", "cohere_command3", "cohere_command4", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4",
    "deepseek_v41", "dots", "ernie45", "functiongemma", "gemma4", "gigachat3", "glm45", "glm47", "granite",
    "granite-20b-fc", "granite4", "hermes", "hf", "hunyuan_a13b", "hy_v3", "hy_v4", "inkling", "internlm", "jamba",
    "k2_horizon", "kimi_k2", "kimi_k3", "lfm2", "ling3", "llama3_json", "llama4_json", "llama4_pythonic", "longcat",
    "mimo", "minicpm5", "minimax_m2", "minimax_m3", "mistral", "muse_glimmer", "olmo3", "openai", "phi4_mini_json",
    "plamo3", "poolside_v1", "pythonic", "qwen3_coder", "qwen3_json", "qwen3_xml", "seed_oss", "step3", "step3p5",
    "xlam",
})  # fmt: skip
_REASONING = frozenset({
    "cohere_command3", "cohere_command4", "deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "ernie45",
    "gemma4", "glm45", "glm47", "granite", "granite_thinking_parser", "hf", "holo2", "hunyuan_a13b", "hy_v3", "hy_v4",
    "inkling", "k2_horizon", "kimi_k2", "kimi_k3", "ling3", "mimo", "minicpmv", "minimax_m2",
    "minimax_m2_append_think", "minimax_m3", "mistral", "muse_glimmer", "nemotron_v3", "olmo3", "openai_gptoss",
    "plamo3", "poolside_v1", "qwen3", "seed_oss", "step3", "step3p5",
})  # fmt: skip
# (field, parser, versions of vLLM that do not have it yet)
_SINCE = (
    ("tool", "minimax_m2", "<0.11"),
    ("reasoning", "minimax_m2", "<=0.11.0"),
    ("reasoning", "minimax_m2_append_think", "<=0.11.0"),
    ("tool", "minimax_m3", "<0.26"),
    ("reasoning", "minimax_m3", "<0.26"),
)


def _asked(context: Context, kind: str) -> str | None:
    return context.plan.tool_call_parser if kind == "tool" else context.plan.reasoning_parser


def _field(kind: str) -> str:
    return "tool_call_parser" if kind == "tool" else "reasoning_parser"


def _unknown(context: Context) -> list[Hit]:
    """Unknown to the vLLM that was asked, too new for its version, or in no list that we know."""
    hits = []
    for kind, table in (("tool", _TOOL), ("reasoning", _REASONING)):
        asked = _asked(context, kind)
        if not asked:
            continue
        listed = context.facts.parsers.get(kind)
        version = context.version("vllm")
        early = any(k == kind and p == asked and context.has("vllm", ranges) for k, p, ranges in _SINCE)
        if (asked not in listed) if listed else (early or asked not in table):
            hits.append({"field": _field(kind), "asked": shown(asked), "version": version or "(version unknown)"})
    if len(hits) == 2:  # one cause: the reasoning parser ends the start, the tool parser may pass unnoticed
        hits[0] = {**hits[0], "severity": "warn"}
    return hits


def _other(context: Context) -> list[Hit]:
    hits = []
    family = next((f for f in FAMILIES if context.model.model_type.startswith(f.kinds)), None)
    minimax = frozenset(("minimax_m2", "minimax_m2_append_think", "minimax_m3", "minimax"))
    for kind in ("tool", "reasoning"):
        asked = _asked(context, kind)
        if not asked or not context.model.model_type:
            continue
        if family is not None and asked not in getattr(family, kind):
            fits = getattr(family, kind)[0]
        elif family is None and asked in minimax and "minimax" not in context.model.model_type:
            fits = "the parser of this model"
        else:
            continue
        what = "no tool call is recognised" if kind == "tool" else "thinking is not told from the answer"
        hits.append({"field": _field(kind), "asked": shown(asked), "fits": fits, "what": what, "kind": kind,
                     "model": context.model.model_type})  # fmt: skip
    return hits


def _append_think(context: Context) -> bool:
    return context.plan.reasoning_parser == "minimax_m2_append_think"


def _too_old(context: Context) -> Hit | None:
    old = context.minimax and context.has("vllm", "<0.11")
    return {"version": context.version("vllm")} if old else None


RULE = Rule(
    "parser of another model or unknown to the version",
    "A parser that does not fit gives no tool calls and no error.",
    (
        Row(
            "parser.unknown", "error", "plan.{field}",
            "vLLM {version} does not know the parser {asked}",
            "It ends with a KeyError before loading, or ignores tool calls.",
            "--tool-call-parser minimax_m2 --reasoning-parser minimax_m2",
            "vLLM parser lists 0.11, 0.26, 0.32", _unknown,
        ),
        Row(
            "parser.other-model", "warn", "plan.{field}",
            "{asked} is another model's parser",
            "For {model} {what}.",
            "use {fits}",
            "vllm-project/vllm#38212; B70 field notes 12", _other,
        ),
        Row(
            "parser.append-think", "info", "plan.reasoning_parser",
            "think tags stay inside the content",
            "minimax_m2_append_think leaves the text in content and prefixes <think>.",
            "--reasoning-parser minimax_m2",
            "vLLM", _append_think,
        ),
        Row(
            "parser.vllm-too-old", "error", "python.packages.vllm",
            "vLLM {version} does not know MiniMax-M2",
            "The model and its parsers came with 0.11.",
            "install vLLM 0.26 or 0.32",
            "vLLM", _too_old, ("plan.tool_call_parser", "plan.reasoning_parser"),
        ),
    ),
)  # fmt: skip
