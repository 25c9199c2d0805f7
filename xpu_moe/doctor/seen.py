"""What a judgement rests on, in one line: "healthy" of a machine without cards means little, and is to be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import xpu_moe.doctor.reading as reading
import xpu_moe.doctor.schema as schema
from xpu_moe.doctor.facts import Facts, Plan
from xpu_moe.doctor.finding import Finding
from xpu_moe.doctor.text import clean

_PLANNED = frozenset(field.name for field in fields(Plan))


def seen(raw: Any) -> str:
    """ "4 x Intel Arc Pro B70 (and 1 other card), kernel 6.17.0, Python 3.12.3, torch …, vllm …; plan xpu tp 4; …"."""
    facts = Facts.of(raw)
    machine = [_cards(facts)]
    machine += [f"kernel {facts.os.kernel}"] if facts.os.kernel else []
    machine += [f"Python {facts.python_version}"] if facts.python_version else []
    for name in ("torch", "vllm") if facts.packages is not None else ():
        version = facts.package(name, f"{name}-cpu", f"{name}-xpu")
        machine.append(f"{name} {version}" if version else f"no {name}")
    return f"{', '.join(machine)}; {_plan(facts)}; {_model(facts)}"


def _cards(facts: Facts) -> str:
    if facts.gpus is None or facts.present is None:
        return "cards unknown"
    if not facts.gpus:
        return "no Intel or NVIDIA card"
    kinds = Counter(gpu.name or gpu.device_id or "unnamed card" for gpu in facts.gpus)
    text = ", ".join(f"{count} x {name}" for name, count in list(kinds.items())[:8])
    others = len(facts.present) - len(facts.gpus)
    return f"{text} (and {others} not used)" if others else text


def _plan(facts: Facts) -> str:
    if facts.plan is None:
        return "no plan"
    told = [
        f"{name} {value}" for name in ("tp", "pp", "dtype", "max_model_len") if (value := getattr(facts.plan, name))
    ]
    return " ".join(["plan", facts.plan.device or "for any device", *told])


def _model(facts: Facts) -> str:
    if facts.model is None:
        return "no model"
    return f"model {facts.model.model_type or 'of an unknown type'}"


def unread(raw: Any) -> list[Finding]:
    """Values that no rule sees, since they have another type or name than they should."""
    facts = reading.mapping(raw)
    return [_unread(found.path, found.says) for found in schema.unread(facts)] + _unread_of_plan(facts)


def _unread_of_plan(facts: Mapping[str, Any]) -> list[Finding]:
    plan = reading.mapping(facts.get("plan"))
    read = reading.plan(dict(plan))
    findings = []
    for name, value in list(plan.items())[:100]:
        if name in _PLANNED and (value is None or getattr(read, name) is not None):
            continue
        wrong = f"got {schema.told(value)}, which is no value for it" if name in _PLANNED else "is no field of a plan"
        findings.append(_unread(f"plan.{clean(str(name), 60)}", wrong))
    return findings


def _unread(path: str, says: str) -> Finding:
    return Finding(
        "facts.unread", "warn", path, f"{path.rpartition('.')[2]}: {says}",
        "It was left out of the judgement.", "write it as docs/doctor.md has it (tp: 4, dtype: \"float16\")",
        "facts schema",
    )  # fmt: skip
