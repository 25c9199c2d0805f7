"""Variables and values: not honoured, misread, known to hurt, excluding each other. A walk over xpu_moe/env's rows."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.rules.moderation import moderated
from xpu_moe.doctor.text import quoted, shown
from xpu_moe.env import versions
from xpu_moe.env.parse import Reading, interpret, reader_of
from xpu_moe.env.pattern import holds, matches
from xpu_moe.env.registry import find, registry
from xpu_moe.env.variable import Variable

Hit = dict[str, Any]
_COMPONENTS = ("vllm", "torch", "oneccl", "oneapi", "xpu-kernels", "nccl")
_OURS = ("xpu_moe", "script")
_PREFIX = "XPU_MOE_"
_FAMILIES = ("CCL_", "VLLM_", "UR_L0_", "SYCL_", "NCCL_", "FI_", "ZE_", _PREFIX)
_ADAPTERS = ("ur", "sycl", "neo")  # their `only_in` names an adapter, which `needs` judges
_FOREIGN = {"xpu": ("CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"), "cuda": ("ZE_AFFINITY_MASK", "CUDA_VISIBLE_DEVICES")}
# honoured by nobody in the versions at hand, and yet a default value of it means something to its setter
_TELLING_AT_DEFAULT = ("VLLM_XPU_ENABLE_XPU_GRAPH",)


def _rows(context: Context) -> Iterator[tuple[Variable, str, str]]:
    """The registered variables that are set, for the device of the facts."""
    for name, value in sorted((context.facts.env or {}).items()):
        row = find(name)
        if row is not None and row.owner not in _OURS and context.device in (None, *row.devices):
            yield row, name, value


def _hit(row: Variable, name: str, value: str, says: str, **more: Any) -> Hit:
    hit = {"name": name, "value": shown(value), "says": says[:1].upper() + says[1:], "quoted": quoted(name), **more}
    return {**hit, "source": row.source or "environment registry"}


def unread(context: Context, row: Variable, name: str) -> str:
    """Why the versions in use do not read a variable; "" where they do or where nobody knows."""
    libccl, envs = context.facts.library("libccl"), context.facts.library("vllm/envs.py")
    if row.owner == "oneccl" and libccl and libccl.env_names is not None and (row.honoured or row.only_in):
        return "" if name in libccl.env_names else f"the loaded {libccl.name} does not hold the name"
    if row.owner == "vllm" and envs and envs.env_names is not None:
        if name in envs.env_names:
            return ""
        if row.honoured or row.only_in:
            return "the installed vLLM's envs.py does not hold the name"
    for component, wanted in row.honoured.items():
        have = context.version(component) if component in _COMPONENTS else None
        if have is not None and not versions.satisfies(have, wanted):
            return f"{component} {have} does not read it ({component} {wanted} does)"
    if row.only_in and not row.honoured and row.owner not in _ADAPTERS:
        return f"only in {row.only_in}" if row.only_in != "no version" else "no version reads it"
    return ""


def _not_honoured(context: Context) -> list[Hit]:
    """Variables of one too old library count once: the all-reduce's, else the first, speaks for the others."""
    hits: list[Hit] = []
    too_old: list[Hit] = []
    for row, name, value in _rows(context):
        reason = unread(context, row, name)
        taken = interpret(name, value).taken
        if not reason or (taken == row.default and name not in _TELLING_AT_DEFAULT):
            continue
        instead = row.instead if row.instead and "nothing" not in row.instead else ""
        fix = f"unset {quoted(name)}" + (f"; use {instead}" if instead else "")
        hit = _hit(row, name, value, reason, fix=fix)
        (too_old if row.owner == "oneccl" and row.honoured else hits).append(hit)
    too_old.sort(key=lambda hit: ("ALLREDUCE" not in hit["name"], hit["name"]))
    return hits + too_old[:1] + [{**hit, "severity": "info"} for hit in too_old[1:]]


def _readings(context: Context) -> Iterator[tuple[Variable, str, str, Reading]]:
    for row, name, value in _rows(context):
        if not unread(context, row, name):
            yield row, name, value, interpret(name, value)


def _misread(fatal: bool) -> Callable[[Context], list[Hit]]:
    def when(context: Context) -> list[Hit]:
        return [
            _hit(row, name, value, shown(reading.says, 200), fix=f"unset {quoted(name)}, or write an accepted value")
            for row, name, value, reading in _readings(context)
            if reading.says and reading.fatal is fatal
        ]

    return when


def _outside(context: Context) -> list[Hit]:
    """Values outside the written choices where the library says nothing itself."""
    hits = []
    for row, name, value, reading in _readings(context):
        if not row.choices or reader_of(row) not in ("text", "atoi") or reading.says:
            continue
        choices = [choice.lower() for choice in row.choices]
        if value.lower() not in choices and not (row.kind == "enum" and value.isdigit()):
            says = f"accepted: {', '.join(row.choices)}"
            hits.append(_hit(row, name, value, says, fix=f"unset {quoted(name)}, or write an accepted value"))
    return hits


def healthy(row: Variable, taken: str) -> bool:
    """Is the value the default, or what an unconditional profile for the server recommends?"""
    recommended = {value for key, value in row.profiles.items() if key not in row.when and "probe" not in key}
    return taken == row.default or taken in recommended


def _cautions(context: Context) -> list[Hit]:
    hits = []
    for row, name, value, reading in _readings(context):
        taken = reading.taken
        if taken is None or _contradicted(context, row, taken):
            continue
        for caution in row.cautions:
            if not matches(caution.value, taken, row.default):
                continue
            severity = moderated(context, name, taken, None if healthy(row, taken) else caution.level)
            if severity:
                fix = f"unset {quoted(name)}"
                hits.append(_hit(row, name, value, caution.says, fix=fix, severity=severity))
    return hits


def _contradicted(context: Context, row: Variable, taken: str) -> bool:
    """Is a need of the value openly refused? Then it does nothing, and what it would do does not matter."""
    env = context.facts.env or {}
    return any(
        matches(need.value, taken, row.default)
        and need.other.partition("=")[0] in env
        and holds(need.other, env) is None
        for need in row.needs
    )


def _with_graph(context: Context) -> Mapping[str, str]:
    """The environment in which "graphs are on" is always told by the variable that rows write for it."""
    env = {k: v for k, v in (context.facts.env or {}).items() if k != "VLLM_XPU_ENABLE_XPU_GRAPH"}
    return {**env, "VLLM_XPU_ENABLE_XPU_GRAPH": "1"} if context.xpu and context.graph else env


def _conflicts(context: Context) -> list[Hit]:
    hits = []
    env = _with_graph(context)
    for row, name, value, reading in _readings(context):
        for conflict in row.conflicts:
            other = holds(conflict.other, env) if reading.taken is not None else None
            if other is None or not matches(conflict.value, reading.taken or "", row.default):
                continue
            severity = moderated(context, name, reading.taken or "", "warn")
            what = "a plan with graphs" if other.startswith("VLLM_XPU_ENABLE_XPU_GRAPH") else shown(other)
            if severity:
                says = f"excludes {what}: {conflict.why}"
                hits.append(_hit(row, name, value, says, fix=f"unset {quoted(name)}", severity=severity))
    return hits


def _needs(context: Context) -> list[Hit]:
    hits = []
    env = context.facts.env or {}
    for row, name, value, reading in _readings(context):
        for need in row.needs:
            taken = reading.taken
            if taken is None or taken == row.default or not matches(need.value, taken, row.default):
                continue
            if holds(need.other, env) is None:
                says = f"does nothing without {need.other}: {need.why}"
                unsure = name.startswith("UR_") and "SYCL_UR_USE_LEVEL_ZERO_V2" not in env and not _second(context)
                severity = "info" if unsure else moderated(context, name, taken, "warn") or "info"
                fix = f"unset {quoted(name)}, or export {need.other}"
                hits.append(_hit(row, name, value, says, fix=fix, severity=severity))
    return hits


def _second(context: Context) -> bool:
    """Is the v2 Level Zero adapter in use by default? Newer runtimes choose it on Xe2."""
    return context.battlemage and context.has("oneapi", ">=2026")


def _chooses_cards(context: Context) -> Hit | None:
    env = context.facts.env or {}
    wrong, right = _FOREIGN.get(context.device or "", ("", ""))
    if wrong not in env or right in env:
        return None
    return {"name": wrong, "right": right, "device": context.device, "value": shown(env[wrong])}


def _elsewhere(context: Context) -> list[Hit]:
    hits: list[Hit] = []
    if context.device not in ("xpu", "cuda"):
        return hits
    for name, value in sorted((context.facts.env or {}).items()):
        row = find(name)
        if row and context.device not in row.devices:
            says = f"read for {', '.join(row.devices)} only"
            hits.append(_hit(row, name, value, says, device=context.device))
    return hits


def _own(context: Context) -> list[Hit]:
    """Values that the reader of our own variables refuses when it meets them, which may be late."""
    hits = []
    for name, value in sorted((context.facts.env or {}).items()):
        row = find(name)
        if row is None or not name.startswith(_PREFIX):
            continue
        reading = interpret(name, value)
        if reading.taken is None:
            says = shown(f"{name}={value!r}: {reading.says}", 200)
            hits.append(_hit(row, name, value, says, fix=f"unset {quoted(name)}, or write such a value"))
        elif row.kind == "int" and reading.taken and int(reading.taken) < 1:
            hits.append(_hit(row, name, value, "wanted 1 or more", fix=f"unset {quoted(name)}"))
    return hits


def _strangers(context: Context) -> list[Hit]:
    """Names that no row knows, in the families whose libraries ignore such names."""
    hits = []
    envs = context.facts.library("vllm/envs.py")
    names = [*registry(), *(envs.env_names or () if envs else ())]
    for name, value in sorted((context.facts.env or {}).items()):
        if find(name) is not None or not name.startswith(_FAMILIES):
            continue
        if envs and envs.env_names and name in envs.env_names:
            continue
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.86)
        sure = (
            bool(near)
            or name.startswith((_PREFIX, "CCL_", "VLLM_XPU_", "VLLM_MINIMAX_", "SYCL_PI_"))
            or bool(envs and "VLLM" in name)
        )
        hint = f"Did you mean {near[0]}?" if near else "No version known to us reads it."
        severity = "warn" if sure else "info"
        hits.append({"name": name, "value": shown(value), "hint": hint, "quoted": quoted(name), "severity": severity})
    return hits


RULE = Rule(
    "variable or value not honoured",
    "A variable that the versions in use do not read, or a value that its library takes for something else.",
    (
        Row(
            "env.not-honoured", "warn", "env.{name}",
            "{name} is not honoured",
            "{says}.",
            "{fix}",
            "environment registry, column honoured", _not_honoured,
        ),
        Row(
            "env.refused", "error", "env.{name}",
            "{name}={value} ends the process",
            "{says}.",
            "{fix}",
            "environment registry, parsers", _misread(fatal=True),
        ),
        Row(
            "env.misread", "warn", "env.{name}",
            "{name}={value} does not mean what it says",
            "{says}.",
            "{fix}",
            "environment registry, parsers", _misread(fatal=False),
        ),
        Row(
            "env.no-choice", "warn", "env.{name}",
            "{name}={value} is none of its values",
            "{says}.",
            "{fix}",
            "environment registry, choices", _outside,
        ),
        Row(
            "env.caution", "warn", "env.{name}",
            "{name}={value}: known to hurt",
            "{says}.",
            "{fix}",
            "environment registry, cautions", _cautions,
        ),
        Row(
            "env.conflict", "warn", "env.{name}",
            "{name}={value} contradicts another setting",
            "{says}.",
            "{fix}",
            "environment registry, conflicts", _conflicts,
        ),
        Row(
            "env.need", "warn", "env.{name}",
            "{name}={value} does nothing by itself",
            "{says}.",
            "{fix}",
            "environment registry, needs", _needs,
        ),
        Row(
            "env.wrong-mask", "warn", "env.{name}",
            "{name} does not choose cards on {device}",
            "Cards are chosen by {right} here; {name} has no effect.",
            "unset {name}; export {right}=<cards>",
            "environment registry, devices", _chooses_cards,
        ),
        Row(
            "env.elsewhere", "info", "env.{name}",
            "{name} has no effect on {device}",
            "{says}.",
            "unset {quoted}",
            "environment registry, devices", _elsewhere,
        ),
        Row(
            "env.own", "warn", "env.{name}",
            "{name}={value} cannot be read",
            "{says}.",
            "{fix}",
            "environment registry", _own,
        ),
        Row(
            "env.unknown", "warn", "env.{name}",
            "{name} is not a known variable",
            "Its library ignores names that it does not know. {hint}",
            "unset {quoted}",
            "environment registry", _strangers,
        ),
    ),
)  # fmt: skip
