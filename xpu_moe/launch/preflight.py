"""The doctor on the resolved plan, before anything is loaded."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xpu_moe.doctor.finding import Finding
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import USAGE, LaunchError
from xpu_moe.launch.model import Model
from xpu_moe.launch.plan import LaunchPlan
from xpu_moe.launch.settings import Setting
from xpu_moe.launch.words import counted


def run(
    plan: LaunchPlan, environ: Mapping[str, str], console: Console, *, force: bool, deep: bool = False
) -> list[Any]:
    """Print the findings and return them; LaunchError(USAGE) where one is an error, unless `force`."""
    from xpu_moe.doctor.collect import collect
    from xpu_moe.doctor.judge import judge

    console.say("preflight: reading this machine, the environment and the checkpoint")
    tell = (lambda text: console.say(f"preflight: {text}")) if deep else None
    facts = collect(model=plan.model.path, plan=plan.facts(), environ=dict(environ), deep=deep, on_phase=tell)
    findings = judge(facts)
    for finding in findings:
        console.plain("\n".join(finding.lines()))
    errors = [finding for finding in findings if finding.severity == "error"]
    warnings = sum(finding.severity == "warn" for finding in findings)
    notes = counted(len(findings) - len(errors) - warnings, "note")
    console.say(f"preflight: {counted(len(errors), 'error')}, {counted(warnings, 'warning')}, {notes}")
    if errors and not force:
        raise LaunchError(
            USAGE, f"preflight: {errors[0].about}: {errors[0].title}; {errors[0].fix} (--force goes on nevertheless)"
        )
    if errors:
        console.say(f"preflight: --force: going on in spite of {counted(len(errors), 'error')}")
    return findings


def refuse_impossible(
    model: Model, facts: Mapping[str, Any], settings: Mapping[str, Setting], environ: Mapping[str, str]
) -> None:
    """LaunchError(USAGE) for a value that the model or vLLM is known to forbid: told before anything is made, and by
    `--dry-run` too. The doctor's rules about the plan, without this machine; the cut was judged before."""
    from xpu_moe.doctor.facts import SCHEMA
    from xpu_moe.doctor.judge import judge

    found = judge({"schema": SCHEMA, "plan": facts, "model": {"config": dict(model.config)}, "env": dict(environ)})
    errors = [finding for finding in found if finding.severity == "error" and finding.about.startswith("plan.")]
    by_about = {f"plan.{setting.row.fact}": setting for setting in settings.values() if setting.row.fact}
    # Of two that contradict each other the one to name is the user's.
    errors.sort(key=lambda finding: not _given(by_about.get(finding.about)))
    for finding in errors:
        if finding.about != "plan.tp":
            setting = by_about.get(finding.about)
            says = f"{finding.title}: {finding.why} Do: {finding.fix} (--force goes on nevertheless)"
            raise LaunchError(USAGE, f"{_shown(setting) if setting else finding.about}: {says}")


def _given(setting: Setting | None) -> bool:
    return setting is not None and setting.origin.startswith(("flag", "environment"))


def _shown(setting: Setting) -> str:
    """A value under the flag or variable that it came from; under its flag where a profile or a plan gave it."""
    name, _, after = setting.origin.partition(" ")[2].partition(" ") if _given(setting) else (setting.row.flag, "", "")
    return f"{name} {setting.value}{after and ' ' + after}"


def of_files(plan: LaunchPlan) -> list[Finding]:
    """What the doctor finds in the checkpoint's files and in the plan alone, for `--dry-run`: this machine may be
    another one than the server's. Errors and warnings; the cut was judged before."""
    from xpu_moe.doctor.collect.model import facts
    from xpu_moe.doctor.collect.where import Where
    from xpu_moe.doctor.facts import SCHEMA
    from xpu_moe.doctor.judge import judge

    found = facts(Where(Path("/"), {}, plan.model.path))
    findings = judge({"schema": SCHEMA, "plan": plan.facts(), **found})
    return [finding for finding in findings if finding.severity != "info" and finding.about != "plan.tp"]


def say_files(plan: LaunchPlan, findings: list[Finding], console: Console) -> None:
    """The findings of `of_files`, and in one line what was not looked at."""
    for finding in findings:
        console.plain("\n".join(finding.lines()))
    errors = sum(finding.severity == "error" for finding in findings)
    refused = ": a start would be refused" if errors else ""
    counts = f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}"
    console.plain(
        f"dry run: {counts} in the checkpoint's files and the plan{refused}; "
        f"not looked at: this machine (python3 -m xpu_moe.doctor --model {shlex.quote(str(plan.model.path))})"
    )


def is_deep(plan: LaunchPlan, wanted: str) -> bool:
    """Whether the child of `--deep` is worth its seconds: where there are cards, or parsers that the user named."""
    named = any(plan.settings[name].origin.startswith("flag") for name in ("tool_call_parser", "reasoning_parser"))
    return wanted == "deep" or (wanted == "auto" and (plan.device.kind != "cpu" or named))
