"""The registry and its profiles as text: shell exports, one variable explained, a difference, a document."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from xpu_moe.env.judge import Finding
from xpu_moe.env.parse import Reading, interpret, reader_of
from xpu_moe.env.profiles import PROFILES, Left, Setting, Situation, not_honoured
from xpu_moe.env.registry import lookup, registry
from xpu_moe.env.variable import Variable


def shell(settings: Sequence[Setting], left: Sequence[Left]) -> str:
    """Lines for `eval`: exports of the profile; what is yours, and what was left alone, as comments."""
    lines = []
    for setting in settings:
        if setting.origin == "yours":
            lines.append(f"# {setting.name}={shlex.quote(_shown(setting.name, setting.value))} is yours, kept")
        else:
            lines.append(f"export {setting.name}={shlex.quote(setting.value)}  # {setting.why}")
    lines += [f"# {item.name} left alone: {item.why}" for item in left]
    return "\n".join(lines)


# readers whose name says too little
_READ_AS = {
    "launch-count": "a whole number of at least 1; scripts/serve_minimax.sh refuses anything else",
    "xpu_moe": "xpu_moe reads its own: anything else is refused",
}


def explain(name: str, environ: Mapping[str, str], in_use: Mapping[str, str], situation: Situation) -> str:
    """Everything the registry knows of a variable, and what its value in the environment comes to."""
    row = lookup(name)
    lines = [f"{name} ({row.kind}, {row.owner}; {', '.join(row.devices)})", f"  {row.doc}"]
    facts = (
        ("default", row.default),
        ("values", ", ".join(row.choices)),
        ("why", row.why),
        ("profiles", ", ".join(f"{p}: {v}{_condition(row, p)}" for p, v in row.profiles.items())),
        ("read as", _read_as(row)),
        ("read by", ", ".join(f"{c} {v}" for c, v in row.honoured.items())),
        ("only in", row.only_in),
        ("instead", row.instead),
        ("source", row.source),
    )
    lines += [f"  {label:9} {text}" for label, text in facts if text]
    lines += [f"  at {c.value}: {c.level}, {c.says}" for c in row.cautions]
    lines += [f"  at {c.value} excludes {c.other}: {c.why}" for c in row.conflicts]
    lines += [f"  at {n.value} needs {n.other}: {n.why}" for n in row.needs]
    unread = not_honoured(row, in_use, situation)
    if unread:
        lines.append(f"  here      not honoured: {unread}")
    value = environ.get(name)
    if value is not None:
        reading = interpret(name, value)
        comes_to = "; ".join(part for part in (_taken(row, name, reading), reading.says) if part)
        lines.append(f"  yours     {_shown(name, value)!r}, {comes_to}")
    return "\n".join(lines)


def _read_as(row: Variable) -> str:
    """Whose rules a value is read by."""
    reader = reader_of(row)
    if reader == "text" and row.kind in ("bool", "int", "float", "bytes"):
        return "it stands; how its library parses it is not known here"
    return _READ_AS.get(reader, reader)


def _taken(row: Variable, name: str, reading: Reading) -> str:
    ours = row.owner in ("xpu_moe", "script")
    if reading.taken is None:
        return "refused" if ours else "its library stops"
    return "counts as not set" if ours and not reading.taken else f"taken as {_shown(name, reading.taken)!r}"


def row(name: str) -> dict[str, Any]:
    """The registry's row of a variable, for JSON."""
    return {"schema": 1, "variable": name, "row": asdict(lookup(name))}


def difference(settings: Sequence[Setting], environ: Mapping[str, str]) -> str:
    """The profile against the environment: + would be set, = as the profile has it, ! yours differs, ? yours alone."""
    lines = []
    for s in settings:
        if s.name not in environ:
            lines.append(f"+ {s.name}={s.value}")
        elif environ[s.name] == s.wanted:
            lines.append(f"= {s.name}={_shown(s.name, s.value)}")
        else:
            lines.append(f"! {s.name}={_shown(s.name, environ[s.name])} (yours, kept; the profile has {s.wanted})")
    rendered = {s.name for s in settings}
    for name in sorted(environ):
        row = registry().get(name)
        if row is not None and name not in rendered and row.owner not in ("system", "script"):
            lines.append(f"? {name}={_shown(name, environ[name])} (yours; no part of the profile)")
    return "\n".join(lines)


def complaints(findings: Iterable[Finding]) -> str:
    """One line for each finding."""
    return "\n".join(f"{f.level}: {f.name}={_shown(f.name, f.value)}: {f.says}" for f in findings)


def document() -> str:
    """docs/environment.md, whole."""
    parts = [_HEAD, "## Profiles\n", "| profile | builds on | for | when |", "|---|---|---|---|"]
    for p in PROFILES.values():
        parts.append(f"| `{p.name}` | {p.base or '–'} | {', '.join(p.devices)} | {p.doc} |")
    for p in PROFILES.values():
        for other, why in p.excludes:
            parts.append(f"\n`{p.name}` excludes `{other}`: {why}.")
    rows = sorted(registry().values(), key=lambda row: (row.owner, row.name))
    for owner, group in groupby(rows, key=lambda row: row.owner):
        parts += [f"\n## {owner}\n", "| variable | what | default | profiles | why | read by | source |"]
        parts.append("|---|---|---|---|---|---|---|")
        parts += [_row(row) for row in group]
    return "\n".join(parts) + "\n"


_HEAD = """# Environment variables

Generated: `python -m xpu_moe.env --document > docs/environment.md`. The rows stand in `xpu_moe/env/`.

A profile never replaces a value of yours; it is kept and shown as yours. `python -m xpu_moe.env --explain NAME` says
all that is known of one variable, `--diff` compares a profile with your environment, and what your libraries would
misread or ignore is named on stderr. Condition of a profile's value in brackets.

Exit codes: 0, 1 a value of yours is an error, 2 a bad argument, 74 the answer could not be written on stdout, 141 its
reader has gone. Without an answer, `--json` gives `{"ok": false, "cannot": "why"}`.
"""


def _row(row: Variable) -> str:
    what = row.doc + (f" Values: {', '.join(row.choices)}." if row.choices else "")
    profiles = ", ".join(f"{p}: `{v}`{_condition(row, p)}" for p, v in row.profiles.items())
    read_by = ", ".join([*(f"{c} {v}" for c, v in row.honoured.items()), *([row.only_in] if row.only_in else [])])
    warnings = "; ".join(f"at `{c.value}`: {c.says}" for c in row.cautions)
    why = "; ".join(part for part in (row.why, warnings) if part)
    cells = (f"`{row.name}`", what, f"`{row.default}`" if row.default else "–", profiles or "–", why or "–",
             read_by or "all", row.source or "this project")  # fmt: skip
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _condition(row: Variable, profile: str) -> str:
    return f" [{row.when[profile]}]" if profile in row.when else ""


def _shown(name: str, value: str) -> str:
    row = registry().get(name)
    return "***" if row is not None and row.secret else value
