"""The graph policy's decision for a launch: asked of the plan room, turned into vLLM's flags and variables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from xpu_moe import verdict
from xpu_moe.env import versions
from xpu_moe.launch.detect import Found
from xpu_moe.launch.plan import EnvValue, pairs
from xpu_moe.launch.settings import Setting
from xpu_moe.plan.graph_policy import Decision, Situation, decide
from xpu_moe.serving.hooks.table import KNOWN

# What the user says here is the last word: the policy then only tells what it would have done.
_USERS = ("--compilation-config", "-cc", "--enforce-eager", "-O")


def decision(device: Found, settings: Mapping[str, Setting], quantization: str, environ: Mapping[str, str]) -> Decision:
    """The policy's answer for this launch."""
    in_use = versions.installed()
    wanted = {"on": True, "off": False}.get(str(settings["graph"].value))
    return decide(
        Situation(
            device.kind,
            vllm=in_use.get("vllm"),
            torch=in_use.get("torch"),
            oneccl=in_use.get("oneccl"),
            attention=settings["attention_backend"].value,
            world=settings["tp"].value * settings["pp"].value,
            probe=verdict.replay(device.kind, settings["tp"].value),  # of `python -m xpu_moe.probe allreduce`
            int4_moe=quantization not in ("", "fp8"),
            hooks=frozenset(KNOWN),
            wanted=wanted,
            environ=dict(environ),
            versions=in_use,
        )
    )


def flags(found: Decision, device: Found, compilation: Mapping[str, Any], extra: tuple[str, ...]) -> list[str]:
    """vLLM's flags; none on a CPU (vLLM sets NONE itself) and none where the user gave their own."""
    if device.kind == "cpu" or users_own(extra):
        return []
    config = {**(compilation if found.on else {}), **found.compilation_config()}
    return ["--compilation-config", json.dumps(config, sort_keys=True)] if config else []


def users_own(extra: tuple[str, ...]) -> bool:
    """Whether the user decided about compilation or graphs after `--`."""
    return any(flag in _USERS or flag.startswith(("-cc.", "--compilation-config.", "-O")) for flag, _ in pairs(extra))


def rows(found: Decision) -> dict[str, EnvValue]:
    """The variables that the decision sets or takes away."""
    why = "wanted by the graph policy" if found.on else "graphs are off"
    return {name: EnvValue(name, value, "graph policy", why) for name, value in found.environment.items()}


def note(found: Decision, device: Found, extra: tuple[str, ...], asked: Setting) -> str:
    """One sentence for people, which says so where an `on` of theirs is overridden; "" on a CPU without one."""
    overridden = asked.value == "on" and found.mode == "NONE" and not users_own(extra)
    if device.kind == "cpu" and not overridden:
        return ""
    others = len(found.refused) - 1
    more = f" (and {others} more reason{'s' if others > 1 else ''})" if others > 0 else ""
    yours = "; your own flags after -- decide instead" if users_own(extra) else ""
    on = "--graph on" if asked.origin.startswith("flag") else f"the on of {asked.origin}"
    against = f"; {on} does not change that" if overridden else ""
    reason = found.reason if found.reason.startswith("graphs") else f"graphs: {found.reason}"
    return f"{reason}{more}{yours}{against}"
