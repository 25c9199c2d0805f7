"""`python -m xpu_moe.probe p2p`: may cards read each other's memory, how fast, and does the data arrive?

A driver's report of peer access is no proof: a switch may report it and corrupt. So every direction copies patterns
that are compared bit by bit, one at a time and all at once. The verdict is kept in the cache, keyed by cards, driver,
kernel and library; `env`, `launch` and `doctor` read it, and without one CCL_TOPO_P2P_ACCESS stays unset.

These are copies; loads and stores of kernels are what `python -m xpu_moe.probe allreduce` exercises.

Exit codes: 0 every pair is reachable and intact (or one card: nothing to prove); 1 a pair is not reachable; 2 a bad
argument, no card, or no numpy; 3 a hang; 4 the process died; 5 wrong data; 74 and 141 the answer could not be written
(see `streams.emit`); 130 and 143 interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xpu_moe import bounds, cache, host_memory, needs, streams, verdict
from xpu_moe.env import read
from xpu_moe.env.cards import indices
from xpu_moe.probe._p2p import faults
from xpu_moe.probe._watch.footprint import Footprint, sweep
from xpu_moe.probe._watch.patience import Impatient, devices
from xpu_moe.probe._watch.signals import Stop
from xpu_moe.probe._watch.supervise import Launch, Outcome, Supervisor

HELP = "peer access: matrix, bandwidth each way, data integrity; keeps the verdict"
_MOST_BYTES, _MOST_REHEARSED = 1 << 34, 16
_EXIT = {"ok": 0, "unreachable": 1, "hang": 3, "dead": 4, "corrupt": 5}


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    wrong = _wrong(arguments) or needs.unusable("numpy")
    if wrong:
        return streams.refuse("p2p", wrong, arguments.json)
    sweep()
    with Stop() as stop:
        try:
            kind = "rehearsal" if arguments.rehearse is not None else arguments.device or next(iter(devices(stop)))
        except Impatient as error:
            code = stop.exit_code if stop.signal else 3
            return streams.refuse("p2p", f"{error}: name --device", arguments.json, code)
        if kind not in ("xpu", "cuda", "rehearsal"):
            return streams.refuse("p2p", "no accelerator here (see `python -m xpu_moe.doctor`)", arguments.json)
        seen: dict[str, Any] = {"cards": [], "pairs": []}
        outcome = _watched(arguments, kind, stop, seen)
        if outcome.kind == "interrupted":
            return 128 + (stop.signal or signal.SIGINT)
    if not seen["cards"] and (why := _unreachable(outcome)):
        return streams.refuse("p2p", f"--device {kind}: {why}", arguments.json)
    result = _result(kind, outcome, seen)
    if len(seen["cards"]) > 1 and kind != "rehearsal" and not arguments.no_save:
        result["kept"] = _keep(kind, result)
    lost = streams.emit("p2p", json.dumps(result) if arguments.json else _text(result))
    return lost or _EXIT[result["verdict"]]


def _wrong(arguments: argparse.Namespace) -> str:
    """What is wrong with the arguments; "" where nothing is."""
    if not 4096 <= arguments.bytes <= _MOST_BYTES or arguments.bytes % 4:
        return f"--bytes: got {arguments.bytes}, wanted a multiple of 4 from 4096 to {_MOST_BYTES}"
    if not 0 < arguments.timeout < math.inf:
        return f"--timeout: got {arguments.timeout:g}, wanted more than 0 seconds, and an end"
    if arguments.inject and arguments.rehearse is None:
        return "--inject: breaks a rehearsal only; wanted --rehearse N with it"
    try:
        if arguments.rehearse is not None:
            _check_rehearsal(arguments)
        if arguments.cards is not None:
            indices(arguments.cards)
    except ValueError as error:
        return str(error)
    return ""


def _check_rehearsal(arguments: argparse.Namespace) -> None:
    """Raise ValueError for a rehearsal that cannot be, or whose buffers do not fit into the free memory."""
    count = bounds.whole("--rehearse", arguments.rehearse, 2, _MOST_REHEARSED)
    for option, given in (("--cards", arguments.cards), ("--device", arguments.device)):
        if given is not None:
            raise ValueError(f"{option}: got {given!r}, which names cards of this machine; --rehearse has none of them")
    faults.parse(arguments.inject, count)
    # all directions at once: two buffers and the pattern of each, beside the patterns and what makes them
    short = host_memory.shortage(1, arguments.bytes, 3 * count * (count - 1) + 12)
    if short:
        raise ValueError(f"--rehearse, --bytes: got {count} cards with copies of {arguments.bytes}, which need {short}")


def _watched(arguments: argparse.Namespace, kind: str, stop: Stop, seen: dict[str, Any]) -> Outcome:
    """Run the copies in a process of their own: a bad link hangs or kills it, not the probe."""

    def command(events: int, stack: Path) -> Sequence[str]:
        return (sys.executable, "-m", "xpu_moe.probe._p2p.worker", kind, arguments.cards or "", str(arguments.bytes),
                str(arguments.rehearse or 0), arguments.inject, str(events), str(os.getpid()), str(stack))  # fmt: skip

    def on_event(_: int, event: dict[str, Any]) -> None:
        if event["event"] in seen:
            seen[event["event"]] = event[event["event"]]
        elif event["event"] == "phase" and event["step"]:
            streams.warn(f"p2p: {event['step']}")

    footprint = Footprint()
    try:
        supervisor = Supervisor(footprint, footprint.folder, stop, arguments.timeout, 60.0, on_event)
        return supervisor.run([Launch(0, command, read.snapshot())])
    finally:
        footprint.remove()


def _result(kind: str, outcome: Outcome, seen: dict[str, Any]) -> dict[str, Any]:
    """The JSON form: {schema, device, cards, verdict, says, pairs}."""
    pairs = [verdict.Pair(**pair) for pair in seen["pairs"]]
    worker = outcome.ranks[0] if outcome.ranks else None
    if outcome.kind in ("hang", "dead"):
        where = f"{worker.phase} {worker.step}".strip() if worker else "start"
        how = outcome.says if outcome.kind == "hang" else f"{worker.ended} {worker.error}".strip() if worker else ""
        found, says = outcome.kind, f"in {where}: {how}"
    else:
        found, says = _judge(pairs, seen["cards"])
    return {
        "schema": 1,
        "device": kind,
        "cards": seen["cards"],
        "verdict": found,
        "says": says,
        "pairs": [asdict(pair) for pair in pairs],
        "kept": None,
    }


def _judge(pairs: Sequence[verdict.Pair], cards: Sequence[int]) -> tuple[str, str]:
    if len(cards) < 2:
        return "ok", "one card: there is nothing to prove"
    bad = [pair for pair in pairs if not pair.intact]
    if bad:
        listed = "; ".join(f"{p.source}>{p.target}: {p.says}" for p in bad)
        return "corrupt", f"data does not arrive intact ({listed}); take profile no-p2p and look at IOMMU and ACS"
    closed = [pair for pair in pairs if not pair.reachable]
    if closed:
        listed = ", ".join(f"{p.source}>{p.target}" for p in closed)
        return "unreachable", f"no peer access for {listed}: take profile no-p2p"
    return "ok", f"all {len(pairs)} directions between {len(cards)} cards are reachable and intact"


def _unreachable(outcome: Outcome) -> str:
    """Why there is no way to the cards at all, "" where there is one."""
    error = outcome.ranks[0].error if outcome.kind == "dead" and outcome.ranks else ""
    return error.removeprefix("LookupError: ") if error.startswith("LookupError: ") else ""


def _keep(kind: str, result: dict[str, Any]) -> str:
    """Keep the verdict; returns the file, or why it could not be kept."""
    kept = verdict.Verdict(
        ok=result["verdict"] == "ok",
        says=result["says"],
        tested=tuple(result["cards"]),
        pairs=tuple(verdict.Pair(**pair) for pair in result["pairs"]),
        ground=verdict.ground(kind),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        return str(verdict.save(kept))
    except (cache.UnsafeCache, OSError) as error:
        return f"not kept: {error}"


def _text(result: dict[str, Any]) -> str:
    cards, pairs = result["cards"], {(p["source"], p["target"]): p for p in result["pairs"]}
    lines = [f"peer access of {len(cards)} {result['device']} cards, GB/s from row to column"]
    lines.append("      " + "".join(f"{card:>12}" for card in cards))
    for source in cards:
        cells = [_cell(pairs.get((source, target))) for target in cards]
        lines.append(f"{source:>6}" + "".join(f"{cell:>12}" for cell in cells))
    lines.append(f"verdict {result['verdict']}: {result['says']}")
    if result["kept"]:
        lines.append(f"kept in {result['kept']}")
    return "\n".join(lines)


def _cell(pair: dict[str, Any] | None) -> str:
    if pair is None:
        return "–"
    mark = "" if pair["reachable"] and pair["intact"] else " BAD" if not pair["intact"] else " host"
    return f"{pair['gb_per_s']:.1f}{mark}"


def _parser() -> streams.Parser:
    parser = streams.Parser(prog="python -m xpu_moe.probe p2p", description=HELP)
    add: Any = parser.add_argument
    add("--device", choices=("xpu", "cuda"), help="default: what is in this machine")
    add("--cards", help="indices such as 0,1,2,3 (default: all)")
    add("--bytes", type=int, default=64 << 20, help="of each copy")
    add("--timeout", type=float, default=30.0, help="seconds without progress that count as a hang")
    add("--no-save", action="store_true", help="do not keep the verdict")
    add("--rehearse", type=int, metavar="N", help="N cards of host memory (2 to 16): shows what the probe does")
    add("--inject", default="", metavar="KIND@S>T", help=f"rehearsal only: break S to T ({', '.join(faults.KINDS)})")
    add("--json", action="store_true", help="one JSON object on stdout")
    return parser
