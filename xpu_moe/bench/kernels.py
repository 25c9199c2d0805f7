"""`python -m xpu_moe.bench kernels`: every operator against its rivals and its byte floor, checked in the same run."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HELP = "kernels of this machine's device: us, bytes, TB/s, x floor, x rival, error, backend"


def _parser() -> argparse.ArgumentParser:
    from xpu_moe.bench import suite

    parser = argparse.ArgumentParser(prog="python -m xpu_moe.bench kernels", description=HELP)
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
    """0: all rows measured; 1: a suite failed (the others are printed); 2: bad arguments."""
    from xpu_moe import device
    from xpu_moe.bench import report, suite
    from xpu_moe.bench.ceilings import ceiling

    arguments = _parser().parse_args(argv)
    kind = arguments.device or device.current().kind
    if not device.devices(kind):
        print(f"bench: --device {kind}: none here ({'; '.join(device.inventory().unseen)})", file=sys.stderr)
        return 2
    try:
        tokens = tuple(int(part) for part in arguments.tokens.split(",")) if arguments.tokens else ()
    except ValueError:
        print(f"bench: --tokens: got {arguments.tokens!r}, wanted whole numbers, comma separated", file=sys.stderr)
        return 2
    try:
        report.check_plot(arguments.plot)
        if arguments.rounds < 1 or any(count < 1 for count in tokens):
            raise ValueError("--rounds, --tokens: wanted whole numbers from 1 on")
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    setting = suite.Setting(kind, ceiling(kind), arguments.quick, arguments.rounds, arguments.seed, tokens)
    rows: list[report.Row] = []
    failed: dict[str, str] = {}
    for name in arguments.suite or suite.names():
        try:
            for row in suite.rows_of(name, setting):
                rows.append(row)
                setting.say(f"{name}: {'  '.join(report.cells(row))}")
        except Exception as error:
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
    _print(rows, failed, _about(setting, argv), arguments)
    return 1 if failed else 0


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


def _print(rows: list, failed: dict[str, str], about: dict[str, Any], arguments: argparse.Namespace) -> None:
    from xpu_moe.bench import report

    where = sys.stderr if arguments.json else sys.stdout
    name, source = about["device"]["name"], about["ceiling"]["source"]
    print(f"{name}, torch {about['torch']}; floor at {about['ceiling']['bytes_per_s'] / 1e12:.3g} TB/s ({source})",
          file=where)  # fmt: skip
    if rows:
        print(report.table(rows), file=where)
        print(report.reasons(rows), file=where)
    for suite_name, error in failed.items():
        print(f"suite {suite_name} failed: {error}", file=where)
    if arguments.json:
        json.dump({**report.document(rows, about), "failed": failed}, sys.stdout)
        print()
    if arguments.plot and rows:
        report.plot(rows, arguments.plot, f"xpu_moe kernels on {name}")
