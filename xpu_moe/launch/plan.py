"""A launch as a value: everything that will be started, with the origin of each part. It prints itself."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xpu_moe.launch.detect import Found
from xpu_moe.launch.model import Model
from xpu_moe.launch.secrets import Masker, masked
from xpu_moe.launch.settings import Setting


@dataclass(frozen=True)
class EnvValue:
    """One variable that the server gets. `value` None = it is taken away."""

    name: str
    value: str | None
    origin: str
    why: str = ""


@dataclass(frozen=True)
class LaunchPlan:
    """What will be started. `secrets` are variables that travel in the environment and are never shown."""

    model: Model
    device: Found
    demo: bool
    settings: Mapping[str, Setting]
    profile: str
    graph: bool
    extra: tuple[str, ...]
    command: tuple[str, ...]
    environment: tuple[EnvValue, ...]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> Any:
        """The value of a setting."""
        return self.settings[name].value

    @property
    def url(self) -> str:
        """Where a client on this machine finds the server."""
        host = str(self.value("host"))
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.value('port')}"

    @property
    def name(self) -> str:
        """The name under which clients ask for the model."""
        return str(self.value("served_model_name"))

    def child_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of the server."""
        environ = dict(inherited)
        for row in self.environment:
            if row.value is None:
                environ.pop(row.name, None)
            else:
                environ[row.name] = row.value
        return {**environ, **self.secrets}

    def facts(self) -> dict[str, Any]:
        """The `plan` object of the doctor's facts."""
        return {**facts_of(self.device.kind, self.settings, self.extra), "graph": self.graph}

    def as_dict(self, masker: Masker) -> dict[str, Any]:
        """For JSON: settings with origins, environment, command; secrets masked."""
        return {
            "model": str(self.model.path),
            "device": {"kind": self.device.kind, "count": self.device.count, "why": self.device.why},
            "profile": self.profile,
            "graph": self.graph,
            "settings": {
                name: {"value": s.value, "origin": s.origin} for name, s in self.settings.items() if s.value is not None
            },
            "environment": [
                {"name": e.name, "value": _shown(e, masker), "origin": e.origin, "why": e.why} for e in self.environment
            ],
            "command": masked(self.command, masker),
            "notes": list(self.notes),
        }

    def text(self, masker: Masker) -> str:
        """For people, and to paste: `NAME=value` and the command are quoted for a POSIX shell."""
        lines = [f"# device: {self.device.kind} ({self.device.why})"]
        lines += [f"# note: {_comment(note)}" for note in self.notes]
        for setting in self.settings.values():
            if setting.value not in (None, ""):
                shown = masker.value(setting.row.name, str(setting.value))
                lines.append(f"# {setting.row.name} = {_comment(shown)}  ({setting.origin})")
        for row in self.environment:
            why = f": {row.why}" if row.why else ""
            if row.value is None:
                lines.append(f"unset {row.name}  # {row.origin}{why}")
            else:
                lines.append(f"export {row.name}={shlex.quote(_shown(row, masker) or '')}  # {row.origin}{why}")
        lines += [f"export {name}='***'  # secret, handed on in the environment" for name in self.secrets]
        lines.append(" ".join(shlex.quote(word) for word in masked(self.command, masker)))
        return "\n".join(lines)


def facts_of(device: str, settings: Mapping[str, Setting], extra: tuple[str, ...]) -> dict[str, Any]:
    """What settings and vLLM arguments say to the doctor, before graphs are decided."""
    found = {s.row.fact: s.value for s in settings.values() if s.row.fact and s.row.name != "graph"}
    told = {fact: value for fact, value in found.items() if value not in (None, "")}
    return {"device": device, **told, **_facts_of_flags(extra)}


def _comment(text: str) -> str:
    """`text` on one line: what follows a newline in a comment would be a command."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _shown(row: EnvValue, masker: Masker) -> str | None:
    return None if row.value is None else masker.value(row.name, row.value)


# vLLM flags whose value the doctor judges although we have no setting for them.
_FLAG_FACTS = {
    "--speculative-config": "speculative_config",
    "--enable-expert-parallel": "enable_expert_parallel",
    "-ep": "enable_expert_parallel",
    "--cudagraph-capture-sizes": "cudagraph_capture_sizes",
    "--quantization": "quantization",
    "-q": "quantization",
}


def _facts_of_flags(extra: tuple[str, ...]) -> dict[str, Any]:
    import json

    found: dict[str, Any] = {}
    for flag, value in pairs(extra):
        fact = _FLAG_FACTS.get(flag)
        if fact == "enable_expert_parallel":
            found[fact] = True
        elif fact == "quantization" and value:
            found[fact] = value
        elif fact == "speculative_config":
            try:
                found["speculative_method"] = json.loads(value or "").get("method")
            except (ValueError, AttributeError):
                continue
        elif fact and value:
            sizes = value.replace(",", " ").split()
            if all(size.isdigit() for size in sizes):
                found[fact] = [int(size) for size in sizes]
    return found


def pairs(arguments: tuple[str, ...]) -> list[tuple[str, str | None]]:
    """(flag, value) of vLLM arguments, flags in their dashed spelling; several values are joined by blanks."""
    found: list[tuple[str, list[str]]] = []
    for word in arguments:
        if word.startswith("-") and not word.lstrip("-").replace(".", "").isdigit():
            flag, given, value = word.partition("=")
            found.append((flag.replace("_", "-"), [value] if given else []))
        elif found:
            found[-1][1].append(word)
    return [(flag, " ".join(values) if values else None) for flag, values in found]


def vllm_of(root: Path) -> str:
    """The vllm command of an environment."""
    return str(root / "bin" / "vllm")
