"""What is wrong with an environment: values not honoured, misread, harmful, in conflict, or for another device.

Healthy is silent: a value that equals its default or what its profile recommends is not mentioned, unless the library
would end on it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from xpu_moe.env import library, oneccl_other, parse, pattern
from xpu_moe.env.profiles import Situation, not_honoured, render
from xpu_moe.env.registry import find, registry
from xpu_moe.env.variable import Level, Variable

Kind = Literal["not honoured", "misread", "caution", "conflict", "need", "device", "peers", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One thing to say about one variable."""

    kind: Kind
    level: Level
    name: str
    value: str
    says: str
    source: str = ""


def judge(
    environ: Mapping[str, str], device: str, in_use: Mapping[str, str], situation: Situation = Situation(),  # noqa: B008
    profile: str = "default",
) -> tuple[Finding, ...]:  # fmt: skip
    """All findings for the environment of a process on `device`, errors first."""
    wanted = {s.name: s.wanted for s in render(profile, device, in_use, {}, situation)}
    found: list[Finding] = []
    for name, value in environ.items():
        row = find(name)
        if row is None:
            found += _stranger(name, value, situation)
        elif row.owner not in ("xpu_moe", "script"):
            found += _one(row, name, value, environ, device, in_use, situation, wanted)
    order = {"error": 0, "warn": 1, "info": 2}
    return tuple(sorted(found, key=lambda f: (order[f.level], f.name)))


def _one(row, name, value, environ, device, in_use, situation, wanted) -> Iterator[Finding]:
    def finding(kind: Kind, level: Level, says: str) -> Finding:
        return Finding(kind, level, name, value, says, row.source)

    if device not in row.devices:
        yield from _elsewhere(row, name, value, environ, device)
        return
    unread = not_honoured(row, in_use, situation)
    if unread:
        yield finding("not honoured", "warn", f"not honoured: {unread}")
        return
    reading = parse.interpret(name, value)
    if reading.says:
        yield finding("misread", "error" if reading.fatal else "warn", reading.says)
    if reading.taken is None:
        return
    taken = reading.taken
    if name == "CCL_TOPO_P2P_ACCESS":
        yield from _peers(row, value, taken, situation)
    healthy = taken == row.default or taken == wanted.get(name)
    if not healthy:
        for caution in row.cautions:
            if pattern.matches(caution.value, taken, row.default):
                yield finding("caution", caution.level, caution.says)
    for conflict in row.conflicts:
        other = pattern.holds(conflict.other, environ)
        if other is not None and pattern.matches(conflict.value, taken, row.default):
            yield finding("conflict", "error", f"excludes {other}: {conflict.why}")
    for need in row.needs:
        if pattern.matches(need.value, taken, row.default) and pattern.holds(need.other, environ) is None:
            yield finding("need", "warn", f"needs {need.other}: {need.why}")


def _peers(row: Variable, value: str, taken: str, situation: Situation) -> Iterator[Finding]:
    name, verdict = row.name, situation.peer_access
    if taken == "1" and verdict is False:
        says = "forces peer access that the p2p probe found broken: dies in zeMemOpenIpcHandle or corrupts data; set 0"
        yield Finding("peers", "error", name, value, says, row.source)
    elif taken == "1" and verdict is None:
        says = "forces peer access that nobody has proved; run `python -m xpu_moe.probe p2p`"
        yield Finding("peers", "info", name, value, says, row.source)
    elif taken == "0" and verdict is True:
        says = "the p2p probe proved peer access: going through host memory costs 9 to 15 %"
        yield Finding("peers", "warn", name, value, says, row.source)


def _elsewhere(row: Variable, name: str, value: str, environ: Mapping[str, str], device: str) -> Iterator[Finding]:
    """A variable of another device kind: no effect, worth a warning only where it seems to choose the cards."""
    chooses = {"xpu": "ZE_AFFINITY_MASK", "cuda": "CUDA_VISIBLE_DEVICES"}
    right = chooses.get(device, "")
    wrong = {"xpu": chooses["cuda"], "cuda": chooses["xpu"]}.get(device, "")
    if name == wrong and right not in environ:
        says = f"has no effect on {device}: cards are chosen by {right}"
        yield Finding("device", "warn", name, value, says, row.source)
    elif device != "cpu":
        says = f"has no effect on {device}: read for {', '.join(row.devices)}"
        yield Finding("device", "info", name, value, says, row.source)


def _known_elsewhere(name: str, situation: Situation) -> bool:
    """Whether oneCCL reads a variable that has no row: its library says so, else the list of one release."""
    if situation.library is not None:
        return library.knows(situation.library, name)
    return name in oneccl_other.NAMES


def _stranger(name: str, value: str, situation: Situation) -> Iterator[Finding]:
    """A name that the registry does not know but that is spelt like one of a library's."""
    if name.startswith("VLLM_") and situation.vllm_names is not None and name not in situation.vllm_names:
        near = difflib.get_close_matches(name, situation.vllm_names, n=1, cutoff=0.85)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield Finding("unknown", "warn", name, value, f"the vLLM in use does not know it and ignores it{hint}")
    elif name.startswith("CCL_") and not _known_elsewhere(name, situation):
        near = difflib.get_close_matches(name, registry(), n=1, cutoff=0.85)
        hint = f"; did you mean {near[0]}?" if near else ""
        level: Level = "warn" if near else "info"
        says = f"not in the registry: oneCCL ignores names it does not know{hint}"
        yield Finding("unknown", level, name, value, says)
