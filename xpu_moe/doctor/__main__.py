"""`python -m xpu_moe.doctor`: what is wrong with this machine, this environment, this plan.

Exit codes: 0 healthy, 1 warnings, 2 errors, 64 a bad argument or a file that cannot be read or written, 74 the answer
could not be written, 141 its reader has gone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from xpu_moe import files, streams
from xpu_moe.doctor.collect import collect
from xpu_moe.doctor.facts import SCHEMA
from xpu_moe.doctor.finding import Finding, worst
from xpu_moe.doctor.judge import judge
from xpu_moe.doctor.schema import TOP
from xpu_moe.doctor.seen import seen
from xpu_moe.doctor.text import shown

UNUSABLE = 64
_MOST = 64 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the doctor; returns its exit code."""
    streams.prepare()
    arguments = _parser().parse_args(argv)
    try:
        _exclusive(arguments)
        other = files.open_other("--save", arguments.save)
        facts = _recorded(arguments.facts) if arguments.facts else _collect(arguments)
        if arguments.save:
            _save(arguments.save, other, _impersonal(facts))
    except OSError as error:
        file = error.filename or arguments.save or arguments.facts
        wrong = f"{shown(file, 1000)}: {error.strerror or error}; give another file"
        return streams.refuse("doctor", wrong, arguments.json, UNUSABLE)
    except ValueError as error:
        return streams.refuse("doctor", str(error), arguments.json, UNUSABLE)
    findings = judge(facts)
    if arguments.json:
        found = [finding.as_dict() for finding in findings]
        answer = {"schema": SCHEMA, "seen": seen(facts), "findings": found, "exit": worst(findings)}
        text = json.dumps(answer)
    else:
        text = "\n".join([*_report(findings, arguments.verbose), f"looked at: {seen(facts)}"])
    return streams.emit("doctor", text) or worst(findings)


def _parser() -> streams.Parser:
    parser = streams.Parser(prog="python -m xpu_moe.doctor", description=__doc__, refusal=UNUSABLE)
    parser.add_argument("--facts", type=Path, metavar="FILE", help="judge recorded facts, not this machine and folder")
    parser.add_argument("--save", type=Path, metavar="FILE", help="record the facts: no personal details are in them")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--model", type=Path, metavar="DIR", help="a checkpoint folder to look at")
    parser.add_argument(
        "--plan", type=Path, metavar="FILE", help="a launch plan as JSON (the `plan` object of the facts)"
    )
    parser.add_argument(
        "--deep", action="store_true", help="load torch and the collective library in a child (<= 30 s)"
    )
    parser.add_argument("--verbose", action="store_true", help="notes as well")
    return parser


def _exclusive(arguments: argparse.Namespace) -> None:
    """Recorded facts hold a model and a plan of their own, and no machine to look at. Raises ValueError."""
    ignored = [name for name in ("model", "plan", "deep") if getattr(arguments, name)]
    if arguments.facts and ignored:
        raise ValueError(f"--facts and --{ignored[0]} exclude each other: recorded facts are judged as they are")


def _collect(arguments: argparse.Namespace) -> dict[str, Any]:
    plan = _read("--plan", arguments.plan) if arguments.plan else None
    if isinstance(plan, dict) and isinstance(plan.get("plan"), dict):
        plan = plan["plan"]
    return collect(arguments.model, plan, arguments.deep, on_phase=lambda text: streams.warn(f"doctor: {text}"))


def _recorded(file: Path) -> dict[str, Any]:
    """A facts file. Raises OSError, and ValueError for one that holds none: that machine is not healthy but unseen."""
    facts = _read("--facts", file)
    if not facts.keys() & (TOP.keys() - {"schema", "unread"}):
        got = shown(", ".join(map(str, list(facts)[:8]))) or "none"
        raise ValueError(f"{file}: holds no facts (keys: {got}); wanted what `--save` writes: {', '.join(TOP)}")
    return facts


def _read(option: str, file: Path) -> Any:
    """A JSON file: facts alone, or a recorded case with its facts inside. Raises OSError, ValueError."""
    files.check_regular(option, file, _MOST, "a regular file of JSON")
    try:
        found = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError):
        raise ValueError(f"{file}: no JSON; wanted what `--save` writes") from None
    if isinstance(found, dict) and "schema" not in found and isinstance(found.get("facts"), dict):
        found = found["facts"]
    if not isinstance(found, dict):
        raise ValueError(f"{file}: got {type(found).__name__}, wanted a JSON object as `--save` writes it")
    return found


def _impersonal(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts to be recorded: without the checkpoint's folder, which is for the sentences of this run."""
    model = facts.get("model")
    if not isinstance(model, dict):
        return facts
    return {**facts, "model": {key: value for key, value in model.items() if key != "folder"}}


def _save(file: Path, other: TextIO | None, facts: dict[str, Any]) -> None:
    """Write beside, then rename: an interrupted run leaves no half a file. Into `other`, a pipe or device, as it is."""
    if other is not None:
        with other as out:
            out.write(json.dumps(facts, indent=1, sort_keys=True) + "\n")
        return
    file = file.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(facts, out, indent=1, sort_keys=True)
            out.write("\n")
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _report(findings: list[Finding], verbose: bool) -> list[str]:
    lines: list[str] = []
    for finding in findings:
        if finding.severity != "info" or verbose:
            lines += finding.lines()
    count = {level: sum(f.severity == level for f in findings) for level in ("error", "warn", "info")}
    notes = "" if verbose or not count["info"] else f" ({count['info']} notes: --verbose)"
    if not count["error"] and not count["warn"]:
        return [*lines, f"healthy{notes}"]
    return [*lines, f"{count['error']} errors, {count['warn']} warnings{notes}"]


if __name__ == "__main__":
    sys.exit(streams.interruptible("doctor", main))
