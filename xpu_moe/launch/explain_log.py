"""`python -m xpu_moe.launch explain-log FILE [--json]`: what a finished log means, root cause first.

`--help` tells the exit codes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from xpu_moe import streams
from xpu_moe.doctor.finding import ORDER
from xpu_moe.doctor.logfile import NotALog, explain_file
from xpu_moe.doctor.logs import Explanation
from xpu_moe.doctor.phases import describe

HELP = "what a finished log means, root cause first"
UNREADABLE = 64
UNEXPLAINED = 3
CODES = (
    "exit codes: 0 nothing found or only notes, and the log ends well; 1 warnings; 2 errors with a known cause; 3 a "
    "failure that no rule knows: a traceback, a start that never ended, or a complaint in a log without a start; 64 a "
    "bad argument or a file that cannot be read; 74 the answer could not be written; 141 its reader has gone"
)
_TELL_EVERY = 256 << 20


def main(argv: Sequence[str]) -> int:
    """Run the subcommand; returns its exit code."""
    prog = "python -m xpu_moe.launch explain-log"
    parser = streams.Parser(prog=prog, description=HELP, epilog=CODES, refusal=UNREADABLE)
    parser.add_argument("file", type=Path, help="a log of vLLM, of this launcher, or of dmesg; .gz too; - reads a pipe")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args(argv)
    try:
        explanation = explain_file(arguments.file, _Progress())
    except (OSError, EOFError, NotALog) as error:
        reason = getattr(error, "strerror", None) or str(error)
        wrong = f"{str(arguments.file)!r}: {reason}; give it the text of a log"
        return streams.refuse("explain-log", wrong, arguments.json, UNREADABLE)
    text = json.dumps(explanation.as_dict()) if arguments.json else "\n".join(_lines(explanation))
    lost = streams.emit("explain-log", text)
    if explanation.unexplained:
        return lost or UNEXPLAINED
    return lost or max((2 - ORDER[finding.severity] for finding in explanation.findings), default=0)


class _Progress:
    """One line on stderr for each 256 MiB."""

    def __init__(self) -> None:
        self._told = 0

    def __call__(self, done: int, size: int) -> None:
        if done - self._told >= _TELL_EVERY:
            self._told = done
            of = f" of {size >> 20}" if size else ""
            streams.warn(f"explain-log: {done >> 20}{of} MiB")


def _lines(explanation: Explanation) -> list[str]:
    out = []
    for number, finding in enumerate(explanation.findings):
        if finding.severity == "info" and number:
            continue
        times = f", {finding.count} times" if finding.count > 1 else ""
        out += [
            f"{'likely cause' if not number else 'also'}: {finding.title} [{finding.about}]",
            f"   line {finding.line}{times}: {finding.text}",
            f"   {finding.why}",
            f"   do: {finding.fix}",
        ]
    if explanation.stuck:
        out.append(f"never ended: phase {explanation.stuck} ({describe(explanation.stuck)})")
    elif explanation.phases:
        out.append("the server came up")
    if not explanation.findings:
        out.append(
            f"{explanation.lines} lines, none that the table knows" if explanation.lines else "no whole line in it"
        )
        if explanation.complaint and explanation.unexplained:
            number, text = explanation.complaint
            out += [
                f"the last line that complains is {number}: {text}",
                "   do: look for it in vLLM's issues; python -m xpu_moe.doctor --deep asks the machine itself",
            ]
    return out
