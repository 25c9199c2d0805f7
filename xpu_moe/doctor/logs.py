"""What a log means: one line at a time, or a whole file.

For a watcher:

    explainer = Explainer()
    for line in lines:                       # text, as it comes; escapes and markup may be in it
        finding = explainer.feed(line)       # LogFinding | None: said once for each (code, about)
        explainer.phase                      # name of the phase reached, or None (table in phases.py)
    result = explainer.result()              # Explanation(findings, phases, stuck, lines): root cause first

`match(line)` judges one line alone; `explain(lines)` all of them. `finding.one_line()` is what a watcher prints.
Memory is constant: a finding is kept once with a count. Nothing raises for odd input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from xpu_moe.doctor.finding import ORDER
from xpu_moe.doctor.messages import HARMLESS, MESSAGES, Message
from xpu_moe.doctor.phases import describe, later, phase_of, stamp
from xpu_moe.doctor.text import clean
from xpu_moe.doctor.traces import Raised, Tracebacks

_CHANGED = re.compile(r"value of (CCL_[A-Z0-9_]+) changed to be (.*?) *\(default")
_GUC = re.compile(r"GuC firmware.*?version (\d+(?:\.\d+)+)")
_HOLE = re.compile(r"\{(\w+)(?:\|([^}]*))?\}")
_NAMES = re.compile(
    r"\b((?!\w+_(?:RESULT|ERROR)_)(?:CCL|FI|VLLM|NCCL|ZE|ZES|UR|SYCL|ONEAPI|CUDA|TORCH|PYTORCH|I_MPI|PMI|UCX|GLOO|TRITON|IGC)_[A-Z][A-Z0-9_]{2,})\b"
)
_FILE = re.compile(r"['\" ](/(?:dev|sys|proc|run|tmp|usr|opt|etc|home|models?)/[\w./+-]{2,120})")
_BAD = re.compile(r"\b(?:error|exception|failed|failure|fatal|cannot|could not|unable|invalid|refused|denied)\b", re.I)
_COMPLAINS = re.compile(r"(?:Error|Exception)\b|\b(?:ERROR|CRITICAL|FATAL|[Ff]atal)\b")
# ends of every failed start, which only say that the cause stands above
_POINTS_UP = re.compile(
    r"root cause above|for the root cause|EngineDeadError|Failed core proc|EngineCore failed to start|\braise [A-Za-z_]"
)
_KIND = {"cause": 0, "symptom": 1, "note": 3}
EXCEPTION = "log.exception"  # of a failure that no rule knows
_UNKNOWN = 2  # lines that only name a variable or a file
_MOST_KEPT = 400
_MOST_SHAPES = 20_000
_NO_DIGITS = str.maketrans("", "", "0123456789")
# a fallback is only a warning until what it fell back to fails as well
_WORSE_WITH = {"log.pidfd-missing": ("log.by-path-missing", "log.device-fd", "log.no-peer-access")}


@dataclass(frozen=True)
class LogFinding:
    """A line and its meaning. `line` counts from 1; `rank` orders causes before symptoms before notes."""

    code: str
    severity: str
    about: str
    title: str
    why: str
    fix: str
    source: str
    line: int = 0
    text: str = ""
    phase: str | None = None
    count: int = 1
    rank: int = 0

    def one_line(self) -> str:
        """For a watcher: what it means, what to try."""
        return f"{self.title} ({self.about}). Try: {self.fix}"

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        del found["rank"]
        return found


@dataclass(frozen=True)
class Explanation:
    """`phases`: (name, first line, time) in order; `stuck`: the phase without an end, None when all ended;
    `complaint`: number and text of the last line that no rule knows and that complains; `raised`: the first exception
    of the first process that failed; `failed`: something was raised, or the log ends within a traceback."""

    findings: tuple[LogFinding, ...]
    phases: tuple[tuple[str, int, str | None], ...]
    stuck: str | None
    lines: int
    complaint: tuple[int, str] | None = None
    raised: Raised | None = None
    failed: bool = False

    @property
    def unexplained(self) -> bool:
        """A failure that no rule of the table knows: a traceback, a start that never ended, or a complaint
        in a log without a start."""
        told = [finding for finding in self.findings if finding.severity != "info"]
        if any(finding.severity == "error" for finding in told):
            return told[0].code == EXCEPTION
        return self.failed or (not told and bool(self.stuck or (self.complaint and not self.phases)))

    def as_dict(self) -> dict[str, Any]:
        return {
            "findings": [finding.as_dict() for finding in self.findings],
            "phases": [{"phase": name, "line": line, "time": time} for name, line, time in self.phases],
            "stuck": self.stuck,
            "lines": self.lines,
            "exception": self.raised.as_dict() if self.raised else None,
            "unexplained": self.unexplained,
            "complaint": {"line": self.complaint[0], "text": self.complaint[1]} if self.complaint else None,
        }


def match(line: str) -> LogFinding | None:
    """What one line alone means, or None."""
    return Explainer().feed(line)


def explain(lines: Iterable[str]) -> Explanation:
    """What a whole log means."""
    explainer = Explainer()
    for line in lines:
        explainer.feed(line)
    return explainer.result()


class Explainer:
    """Reads a log line by line and remembers what it needs: settings seen, the phase, each finding once."""

    def __init__(self) -> None:
        self.lines = 0
        self.settings: dict[str, str] = {}
        self._phases: list[tuple[str, int, str | None]] = []
        self._found: dict[tuple[str, str], LogFinding] = {}
        self._asked = ""
        self._guc: str | None = None
        self._complaint: tuple[int, str] | None = None
        self._last: tuple[str, str] | None = None
        self._shapes: dict[str, tuple[str, str] | None] = {}
        self._traces = Tracebacks()

    @property
    def in_traceback(self) -> bool:
        """Whether the next line may end a traceback, whatever words it has."""
        return self._traces.inside

    @property
    def phase(self) -> str | None:
        """The furthest phase begun."""
        return self._phases[-1][0] if self._phases else None

    def feed(self, line: str) -> LogFinding | None:
        """Take the next line; the finding that it brings, if it is a new one."""
        self.lines += 1
        if not line or line.isspace():
            return None
        line = line if len(line) < 20_000 else line[:20_000]
        source = self._traces.feed(self.lines, line)
        shape = line.translate(_NO_DIGITS)
        if shape in self._shapes and "changed to be" not in line:
            self._again(self._shapes[shape])
            return None
        before = self.phase
        self._remember(line)
        if self.phase != before and not later("serve", self.phase or "") and later("serve", before):
            self._traces.forget()
        finding = self._judged(line, source)
        if self.phase != before or len(self._shapes) > _MOST_SHAPES:
            self._shapes.clear()  # what a line means may depend on the phase
        self._shapes[shape] = self._last
        return finding

    def _judged(self, line: str, source: bool) -> LogFinding | None:
        self._last = None
        for message in MESSAGES:
            if any(key in line for key in message.keys):
                found = message.pattern.search(clean(line, 4000))
                if found and (not message.where or self.phase in message.where):
                    return self._keep(self._finding(message, found, line))
        if source:
            return None  # program text names variables and exceptions, and none of them happened there
        finding = self._named(line)
        if finding is None and _COMPLAINS.search(line) and not (HARMLESS.search(line) or _POINTS_UP.search(line)):
            self._complaint = self.lines, clean(line)
        return self._keep(finding)

    def result(self) -> Explanation:
        """All findings, root cause first, the phases, and the phase that never ended."""
        codes = {code for code, _ in self._found}
        found = [
            replace(f, severity="error") if f.rank == 0 and codes.intersection(_WORSE_WITH.get(f.code, ())) else f
            for f in self._found.values()
        ]
        raised = self._traces.root()
        if raised and not any(f.severity == "error" and f.rank < _UNKNOWN for f in found):
            found.append(self._unknown(raised))
        findings = sorted(found, key=lambda f: (f.rank, ORDER[f.severity], f.line))
        return Explanation(
            tuple(findings), tuple(self._phases), self._stuck(), self.lines, self._complaint,
            raised, self._traces.failed,
        )  # fmt: skip

    def _remember(self, line: str) -> None:
        if "changed to be" in line and (changed := _CHANGED.search(line)):
            self.settings[changed.group(1)] = clean(changed.group(2), 80)
        if "non-default args" in line:
            self._asked = clean(line, 8000)
        if "GuC firmware" in line and (guc := _GUC.search(line)):
            self._guc = guc.group(1)
        phase = phase_of(line)
        if phase and later(phase.name, self.phase):
            self._phases.append((phase.name, self.lines, stamp(line)))

    def _finding(self, message: Message, found: re.Match[str], line: str) -> LogFinding:
        groups = {name: clean(value, 120) for name, value in found.groupdict().items() if value}
        groups["guc"] = f" (GuC {self._guc})" if self._guc else ""

        def fill(text: str) -> str:
            return _HOLE.sub(lambda hole: groups.get(hole.group(1), hole.group(2) or ""), text)

        about, title, why, fix = (fill(t) for t in (message.about, message.title, message.why, message.fix))
        blamed = self._blamed(message)
        if blamed:
            about = f"env.{blamed}"
            why = f"{why} The log shows {blamed}={self.settings[blamed]}."
            fix = f"unset {blamed}; {fix}"
        elif setting := next((plan for word, plan in message.asked if word in self._asked), None):
            about = setting
        return LogFinding(
            message.code, message.severity, about, title, f"{why} Phase: {describe(self.phase)}.", fix, message.source,
            self.lines, clean(line), self.phase, 1, _KIND[message.kind],
        )  # fmt: skip

    def _blamed(self, message: Message) -> str | None:
        for name, value in message.blames:
            if name in self.settings and value in (None, self.settings[name]):
                return name
        return None

    def _again(self, key: tuple[str, str] | None) -> None:
        """A line that differs in its digits only from one that was judged: logs repeat themselves for gigabytes."""
        if key is not None and key in self._found:
            self._found[key] = replace(self._found[key], count=self._found[key].count + 1)

    def _named(self, line: str) -> LogFinding | None:
        """A line that complains and names a variable or a file, where no row of the table knows it."""
        if not _BAD.search(line) or HARMLESS.search(line):
            return None
        text = clean(line, 4000)
        name, file = _NAMES.search(text), _FILE.search(text)
        if name:
            about, what = f"env.{name.group(1)}", name.group(1)
        elif file and 'File "' not in text:
            about, what = f"file.{file.group(1)}", file.group(1)
        else:
            return None
        return LogFinding(
            "log.names-something", "warn", about, f"a line complains and names {what}",
            f"No rule knows this message. Phase: {describe(self.phase)}.", f"look at {what}", "general rule",
            self.lines, clean(line), self.phase, 1, _UNKNOWN,
        )  # fmt: skip

    def _unknown(self, raised: Raised) -> LogFinding:
        """The first exception of the first process that failed, where no row of the table knows any line."""
        process = f"({raised.process}) " if raised.process else ""
        ended = f" It ended as {clean(raised.ended, 200)}." if raised.ended else ""
        return LogFinding(
            EXCEPTION, "error", f"process.{raised.process}" if raised.process else "process", raised.text(),
            f"The first exception of the first process that failed; no rule knows it.{ended} Phase: "
            f"{describe(self.phase)}.",
            "look for it in vLLM's issues; python -m xpu_moe.doctor --deep asks the machine itself", "general rule",
            raised.line, process + raised.text(), self.phase,
        )  # fmt: skip

    def _keep(self, finding: LogFinding | None) -> LogFinding | None:
        if finding is None:
            return None
        key = self._last = (finding.code, finding.about)
        earlier = self._found.get(key)
        if earlier:
            self._found[key] = replace(earlier, count=earlier.count + 1)
            return None
        if len(self._found) >= _MOST_KEPT:
            return None
        self._found[key] = finding
        for about in _message(finding.code).also if finding.code != "log.names-something" else ():
            other = replace(finding, severity="info", about=about, title=f"see also: {finding.title}", rank=3)
            self._found.setdefault((finding.code, about), other)
        return finding

    def _stuck(self) -> str | None:
        if self.phase is None or not later("serve", self.phase):
            return None
        return self.phase


def _message(code: str) -> Message:
    return next(message for message in MESSAGES if message.code == code)
