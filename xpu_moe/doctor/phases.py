"""The phases of a vLLM start, told from its log: a table of (phase, what begins it, usual longest time in s)."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """`limit_s`: after so long without a new line or phase a start counts as stuck (B70 field notes, 13)."""

    name: str
    pattern: re.Pattern[str]
    says: str
    limit_s: int


PHASES: tuple[Phase, ...] = (
    Phase("start", re.compile(r"Automatically detected platform|API server version"), "starting the API server", 120),
    Phase("config", re.compile(r"Resolved architecture"), "reading the model's configuration", 120),
    Phase("engine", re.compile(r"Initializing a V1 LLM engine"), "starting the engine and its workers", 180),
    Phase("collectives", re.compile(r"world_size=\d+ rank=\d+"), "joining the ranks", 120),
    Phase("load", re.compile(r"Starting to load model|Loading safetensors checkpoint"), "loading weights", 900),
    Phase("profile", re.compile(r"Model loading took"), "profiling memory and warming up", 300),
    Phase(
        "compile",
        re.compile(r"Using cache directory.*torch\.compile|Dynamo bytecode transform|Compiling a graph"),
        "compiling",
        900,
    ),
    Phase("kv", re.compile(r"(?:GPU|CPU|KV) (?:KV )?cache size|# (?:GPU|CPU) blocks"), "allocating the KV cache", 120),
    Phase("capture", re.compile(r"Capturing (?:CUDA|XPU) ?graphs?|Capturing the model"), "capturing graphs", 300),
    Phase("serve", re.compile(r"Application startup complete"), "ready for requests", 0),
    Phase("answer", re.compile(r'"POST /v1/|Avg (?:prompt|generation) throughput'), "answering", 0),
)
KEYS = (
    "Automatically detected", "API server version", "Resolved architecture", "Initializing a V1", "world_size=",
    "Starting to load", "Loading safetensors", "Model loading took", "Using cache directory", "Dynamo bytecode",
    "Compiling a graph", "cache size", "blocks", "Capturing", "Application startup", "POST /v1/", "throughput",
)  # fmt: skip
_ORDER = {phase.name: number for number, phase in enumerate(PHASES)}
_STAMP = re.compile(r"\b(\d\d-\d\d \d\d:\d\d:\d\d)\b|\b\d{4}:(\d\d:\d\d-\d\d:\d\d:\d\d)\b|^\[ *(\d+\.\d+)\]")


def phase_of(line: str) -> Phase | None:
    """The phase that this line begins, or None."""
    if not any(key in line for key in KEYS):
        return None
    return next((phase for phase in PHASES if phase.pattern.search(line)), None)


def later(name: str, than: str | None) -> bool:
    """Does phase `name` come after `than`?"""
    return than is None or _ORDER[name] > _ORDER[than]


def describe(name: str | None) -> str:
    """What happens in a phase, for a sentence."""
    return PHASES[_ORDER[name]].says if name in _ORDER else "before the first known line"


def stamp(line: str) -> str | None:
    """The time that a line of vLLM, oneCCL or dmesg carries."""
    found = _STAMP.search(line)
    return next((part for part in found.groups() if part), None) if found else None
