"""What a rule is: a table of rows, each with a predicate that says where it applies.

A predicate takes the `Context` and returns False/None (silent), True, a mapping (values for the braces of the row's
texts), or a list of mappings (one finding each). Absent facts must make it silent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xpu_moe.doctor.finding import ORDER, Finding, Severity
from xpu_moe.doctor.rules.context import Context

__all__ = ["Context", "Row", "Rule", "settle"]

Hits = bool | None | Mapping[str, Any] | Sequence[Mapping[str, Any]]
_HOLE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Row:
    """One thing that can be wrong. `under`: paths whose error makes this row a mere note (it depends on them)."""

    code: str
    severity: Severity
    about: str
    title: str
    why: str
    fix: str
    source: str
    when: Callable[[Context], Hits]
    under: tuple[str, ...] = ()

    def findings(self, context: Context) -> Iterator[Finding]:
        """The findings of this row; `severity` among the values of a hit overrides the row's."""
        hits = self.when(context)
        if not hits:
            return
        for hit in hits if isinstance(hits, Sequence) else [hits if isinstance(hits, Mapping) else {}]:
            yield self._fill(hit)

    def _fill(self, values: Mapping[str, Any]) -> Finding:
        def fill(text: str) -> str:
            return _HOLE.sub(lambda hole: str(values.get(hole.group(1), hole.group(0))), text)

        return Finding(
            self.code, values.get("severity", self.severity), fill(self.about), fill(self.title), fill(self.why),
            fill(self.fix), self.source if "source" not in values else str(values["source"]),
        )  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A kind of fault: one sentence for docs/doctor.md and its rows."""

    kind: str
    doc: str
    rows: tuple[Row, ...]

    def judge(self, context: Context) -> Iterator[Finding]:
        """All findings of the kind."""
        for row in self.rows:
            yield from row.findings(context)


def settle(findings: Iterable[Finding], rules: Iterable[Rule] = ()) -> list[Finding]:
    """One voice for each path: the worst finding about it keeps its severity, others about it become notes.

    Findings of rows that depend on a refused setting (`under`) become notes as well.
    """
    found = sorted(findings, key=lambda finding: ORDER[finding.severity])
    refused = {finding.about for finding in found if finding.severity == "error"}
    depends = {row.code: row.under for rule in rules for row in rule.rows if row.under}
    settled: list[Finding] = []
    spoken: set[str] = set()
    for finding in found:
        if finding.severity != "info":
            if finding.about in spoken or refused.intersection(depends.get(finding.code, ())) - {finding.about}:
                finding = replace(finding, severity="info")
            spoken.add(finding.about)
        if finding not in settled:
            settled.append(finding)
    return settled
