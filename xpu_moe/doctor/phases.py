"""The phases of a vLLM start, told from its log: a table of (phase, what begins it, usual longest time in s)."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """`keys`: words of which a line that begins it holds one.

    `limit_s`: after so long without a new line or phase a start counts as stuck (B70 field notes, 13).
    """

    name: str
    pattern: re.Pattern[str]
    says: str
    limit_s: int
    keys: tuple[str, ...] = ()


def _p(name: str, keys: tuple[str, ...], pattern: str, says: str, limit_s: int) -> Phase:
    return Phase(name, re.compile(pattern), says, limit_s, keys)


PHASES: tuple[Phase, ...] = (
    _p("start", ("Automatically detected", "API server version"),
       r"Automatically detected platform|API server version", "starting the API server", 120),
    _p("config", ("Resolved architecture",), r"Resolved architecture", "reading the model's configuration", 120),
    _p("engine", ("Initializing a V1",), r"Initializing a V1 LLM engine", "starting the engine and its workers", 180),
    _p("collectives", ("world_size=",), r"world_size=\d+ rank=\d+", "joining the ranks", 120),
    _p("load", ("Starting to load", "Loading safetensors"),
       r"Starting to load model|Loading safetensors checkpoint", "loading weights", 900),
    _p("profile", ("Model loading took",), r"Model loading took", "profiling memory and warming up", 300),
    _p("compile", ("Using cache directory", "Dynamo bytecode", "Compiling a graph"),
       r"Using cache directory.*torch\.compile|Dynamo bytecode transform|Compiling a graph", "compiling", 900),
    _p("kv", ("cache size", " blocks"), r"(?:GPU|CPU|KV) (?:KV )?cache size|# (?:GPU|CPU) blocks",
       "allocating the KV cache", 120),
    _p("capture", ("Capturing",), r"Capturing (?:CUDA|XPU) ?graphs?|Capturing the model", "capturing graphs", 300),
    _p("serve", ("Application startup",), r"Application startup complete", "ready for requests", 0),
    _p("answer", ("POST /v1/", "throughput"), r'"POST /v1/|Avg (?:prompt|generation) throughput', "answering", 0),
)  # fmt: skip
_ORDER = {phase.name: number for number, phase in enumerate(PHASES)}
_STAMP = re.compile(r"\b(\d\d-\d\d \d\d:\d\d:\d\d)\b|\b\d{4}:(\d\d:\d\d-\d\d:\d\d:\d\d)\b|^\[ *(\d+\.\d+)\]")


def keys_after(name: str | None) -> tuple[str, ...]:
    """Words of the phases that may still begin after `name`."""
    return tuple(key for phase in PHASES if name is None or later(phase.name, name) for key in phase.keys)


def phase_of(line: str) -> Phase | None:
    """The phase that this line begins, or None."""
    for phase in PHASES:
        if any(key in line for key in phase.keys) and phase.pattern.search(line):
            return phase
    return None


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
