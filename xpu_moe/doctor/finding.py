"""What the doctor says: one finding, and the exit code of many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["error", "warn", "info"]
ORDER: dict[str, int] = {"error": 0, "warn": 1, "info": 2}


@dataclass(frozen=True)
class Finding:
    """`about` is the deepest path known (`env.CCL_ZE_CACHE`, `gpus[1].bar_bytes`); `fix` a command or a setting."""

    code: str
    severity: Severity
    about: str
    title: str
    why: str
    fix: str
    source: str

    def as_dict(self) -> dict[str, str]:
        """The finding as JSON keys: code, severity, about, title, why, fix, source."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The finding for people: what and where, why, what to do."""
        return [f"{self.severity:5} {self.about}: {self.title}", f"      {self.why}", f"      do: {self.fix}"]


def worst(findings: Iterable[Finding]) -> int:
    """Exit code: 0 nothing above info, 1 warnings, 2 errors."""
    return max((2 - ORDER[finding.severity] for finding in findings), default=0)
