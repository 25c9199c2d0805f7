"""`--profile NAME`: a named launch of the plan room, or an environment profile; both as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from xpu_moe.env import profiles as environments
from xpu_moe.launch.errors import USAGE, LaunchError
from xpu_moe.launch.settings import ROWS
from xpu_moe.plan.profiles import PROFILES, Profile

DEFAULT = "default"
_PROBE = "probe"
ENVIRONMENTS = {name: profile for name, profile in environments.PROFILES.items() if name != _PROBE}  # those of a server
_PROBE_FIRST = " [graphs only once `python -m xpu_moe.probe allreduce` has passed here]"
_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Named:
    """`values` by the names of our settings; `flags` and `compilation` go to vLLM as they are; `env` names the
    environment profile; `doc` is one sentence."""

    name: str
    doc: str
    env: str = DEFAULT
    values: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    flags: tuple[str, ...] = ()
    compilation: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)


def find(name: str, device: str, why: str = "") -> Named:
    """The profile; LaunchError(USAGE) for an unknown one or one of another device (`why` it is that one).

    A launch may be joined with environments: `b70-tp4-latency+no-p2p`.
    """
    launch, *others = sorted(name.split("+"), key=lambda part: part not in PROFILES)
    if launch in PROFILES and others:
        if second := next((part for part in others if part in PROFILES), ""):
            raise LaunchError(USAGE, f"--profile {name}: {launch} and {second} are two launches; give one of them")
        base = find(launch, device, why)
        joined = "+".join([*others, *([base.env] if base.env != DEFAULT else [])])
        return replace(base, name=name, env=find(joined, device, why).env)
    if name in PROFILES:
        profile = PROFILES[name]
        if profile.device != device:
            here = f"{device} ({why})" if why else device
            raise LaunchError(
                USAGE,
                f"--profile {name}: is for {profile.device}, this launch is for {here}; --profile list shows all, "
                f"--device {profile.device} plans for a machine that has it",
            )
        by_fact = {row.fact: row.name for row in ROWS if row.fact}
        values = {by_fact[fact]: value for fact, value in profile.settings.items() if fact in by_fact}
        if "graph" in values:
            values["graph"] = "on" if values["graph"] else "off"
        kept = {name: value for name, value in values.items() if value is not None}
        return Named(name, _doc(profile), profile.env, kept, profile.flags, profile.compilation)
    unknown = next((part for part in name.split("+") if part not in ENVIRONMENTS), None)
    if unknown is not None:
        what = (
            f"{unknown!r} is for `python -m xpu_moe.probe`, not for a server"
            if unknown == _PROBE
            else f"no {unknown!r}"
        )
        raise LaunchError(
            USAGE,
            f"--profile {name}: {what}; the launches are {', '.join(PROFILES)}; the environments (several joined by +, "
            f"to a launch as well) {', '.join(ENVIRONMENTS)}",
        )
    try:
        environments.resolve(name, device)
    except environments.BadProfile as error:
        raise LaunchError(USAGE, f"--profile {name}: {error}") from None
    return Named(name, "an environment profile", name)


def _doc(profile: Profile) -> str:
    return profile.doc + (_PROBE_FIRST if profile.probe_first else "")


def table() -> dict[str, list[dict[str, Any]]]:
    """All of them, for `--profile list --json`."""
    launches = [
        {"name": p.name, "device": p.device, "proved": p.proved, "evidence": p.evidence, "doc": p.doc}
        for p in PROFILES.values()
    ]
    plain = ENVIRONMENTS.values()
    return {"launches": launches, "environments": [{"name": p.name, "devices": p.devices, "doc": p.doc} for p in plain]}


def listing() -> str:
    """All of them, for `--profile list`."""
    lines = ["launches (settings, vLLM's flags and an environment):"]
    for p in PROFILES.values():
        lines.append(f"  {p.name:18} {p.device:5} {_doc(p)}")
        lines.append(f"  {'':24} {'proved' if p.proved else 'not proved'}: {p.evidence}")
    lines += ["environments (several joined by +, to a launch as well: b70-tp4-latency+no-p2p):"]
    lines += [f"  {p.name:18} {','.join(p.devices):14} {p.doc}" for p in ENVIRONMENTS.values()]
    return "\n".join(lines)
