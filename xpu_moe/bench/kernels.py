"""`python -m xpu_moe.bench kernels`: every operator against its rivals and its byte floor, checked in the same run."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xpu_moe import bounds, files, needs, streams

HELP = "kernels of this machine's device: us, bytes, TB/s, x floor, x rival, error, backend"


def _parser() -> streams.Parser:
    from xpu_moe.bench import suite

    parser = streams.Parser(prog="python -m xpu_moe.bench kernels", description=HELP)
    parser.add_argument("--suite", action="append", choices=suite.names(), help="repeat for several; default: all")
    parser.add_argument("--device", choices=("cuda", "xpu", "cpu"), help="default: the first accelerator, else the CPU")
    parser.add_argument("--tokens", help="values of M, comma separated, in place of each suite's own")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each timing (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="small shapes and few sizes")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the table on stderr")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also write a PNG")
    return parser


def main(argv: Sequence[str]) -> int:
    """0: all rows measured; 1: a suite failed (the others are printed); 2: bad arguments, no such device, or no torch;
    74, 141: `streams.emit`."""
    arguments = _parser().parse_args(argv)
    if lacking := needs.unusable("torch"):
        return streams.refuse("bench", lacking, arguments.json)
    from xpu_moe import device
    from xpu_moe.bench import report, suite
    from xpu_moe.bench.ceilings import ceiling

    kind = arguments.device or device.current().kind
    if not device.devices(kind):
        unseen = "; ".join(device.inventory().unseen)
        return streams.refuse("bench", f"--device {kind}: none here ({unseen})", arguments.json)
    try:
        tokens = _checked(arguments)
    except ValueError as error:
        return streams.refuse("bench", str(error), arguments.json)
    setting = suite.Setting(kind, ceiling(kind), arguments.quick, arguments.rounds, arguments.seed, tokens)
    rows: list[report.Row] = []
    failed: dict[str, str] = {}
    for name in dict.fromkeys(arguments.suite or suite.names()):
        try:
            for row in suite.rows_of(name, setting):
                rows.append(row)
                setting.say(f"{name}: {'  '.join(report.cells(row))}")
        except Exception as error:
            streams.warn(traceback.format_exc())
            failed[name] = f"{type(error).__name__}: {error}"
    lost = _print(rows, failed, _about(setting, argv), arguments)
    return lost or (1 if failed else 0)


def _checked(arguments: argparse.Namespace) -> tuple[int, ...]:
    """The values of M (none: each suite's own). Raises ValueError for arguments out of bounds."""
    bounds.whole("--rounds", arguments.rounds, 1, bounds.ROUNDS)
    bounds.whole("--seed", arguments.seed, 0, bounds.SEED)
    files.check_picture("--plot", arguments.plot)
    return () if arguments.tokens is None else bounds.listed("--tokens", arguments.tokens, bounds.TOKENS)


def _about(setting: Any, argv: Sequence[str]) -> dict[str, Any]:
    """Card, versions, command and how the floors were computed."""
    import torch

    from xpu_moe import device
    from xpu_moe.version import __version__

    card = device.devices(setting.kind)[0]
    return {
        "command": " ".join(["python -m xpu_moe.bench kernels", *argv]),
        "version": __version__,
        "torch": torch.__version__,
        "device": {"kind": card.kind, "name": card.name, "architecture": card.architecture},
        "ceiling": {"bytes_per_s": setting.ceiling.bandwidth, "source": setting.ceiling.source},
    }


def _print(rows: list, failed: dict[str, str], about: dict[str, Any], arguments: argparse.Namespace) -> int:
    """The answer, and the picture; 0, or the code of what could not be written."""
    from xpu_moe.bench import report

    name, source = about["device"]["name"], about["ceiling"]["source"]
    lines = [f"{name}, torch {about['torch']}; floor at {about['ceiling']['bytes_per_s'] / 1e12:.3g} TB/s ({source})"]
    lines += [report.table(rows), report.reasons(rows)] if rows else []
    lines += [f"suite {suite_name} failed: {error}" for suite_name, error in failed.items()]
    document = {**report.document(rows, about), "failed": failed}
    lost = report.say("\n".join(lines), document, arguments.json)
    if arguments.plot and rows:
        lost = report.plot(rows, arguments.plot, f"xpu_moe kernels on {name}") or lost
    return lost
