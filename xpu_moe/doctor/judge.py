"""facts -> findings: pure, fast, never raises."""

from __future__ import annotations

from typing import Any

from xpu_moe.doctor.facts import SCHEMA, Facts
from xpu_moe.doctor.finding import ORDER, Finding
from xpu_moe.doctor.rules import RULES
from xpu_moe.doctor.rules.base import Context, settle
from xpu_moe.doctor.seen import unread
from xpu_moe.doctor.text import shown


def judge(raw: Any, strict: bool = False) -> list[Finding]:
    """Findings of a facts object (schema 1), worst first.

    A rule that fails is itself reported as an info finding, so that one bad rule cannot hide the others; `strict`
    raises instead (tests).
    """
    findings: list[Finding] = [*_schema(raw), *unread(raw)]
    context = Context(Facts.of(raw))
    for rule in RULES:
        try:
            findings += rule.judge(context)
        except Exception as error:
            if strict:
                raise
            findings.append(_failed(rule.kind, error))
    findings = settle(findings, RULES)
    return sorted(findings, key=lambda finding: (ORDER[finding.severity], finding.about, finding.code))


def _schema(raw: Any) -> list[Finding]:
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema in (SCHEMA, None) and isinstance(raw, dict):
        return []
    got = shown(schema) if isinstance(raw, dict) else f"no JSON object but {type(raw).__name__}"
    return [
        Finding(
            "facts.schema", "info", "schema", f"facts of schema {got}, this doctor reads {SCHEMA}",
            "What it does not know counts as absent.", "use the doctor of the same release", "facts schema",
        )
    ]  # fmt: skip


def _failed(kind: str, error: Exception) -> Finding:
    return Finding(
        f"doctor.{kind}", "info", "doctor", f"the rule '{kind}' failed on these facts",
        f"{type(error).__name__}: {shown(error, 200)}", "report it with the facts file", "doctor",
    )  # fmt: skip
