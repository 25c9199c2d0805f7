"""`python -m xpu_moe.probe allreduce`: is the collective library right, how fast is it, and if it hangs, where?

Starts its ranks on this host, or joins torchrun's (one of these under every torchrun worker, any number of hosts). A
parent without torch watches the ranks and ends the run whatever state they are in.

Exit codes: 0 right and measured; 2 a bad argument, or no cache folder for --backend oneccl to build its ranks in; 3 a
hang; 4 a rank died, or none could start; 5 wrong data; 130 and 143 interrupted; 74 and 141 the answer could not be
written (`streams.emit`). Nothing of the run is left on the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xpu_moe import bounds, cache, needs, streams
from xpu_moe.env import read
from xpu_moe.probe._allreduce import faults, plot, remember, report, run
from xpu_moe.probe._allreduce.plan import FORMS, Plan, steps
from xpu_moe.probe._watch.footprint import sweep
from xpu_moe.probe._watch.signals import Stop

HELP = "all-reduce: right data, latency, what a decode step pays; a hang is diagnosed, nothing is left behind"
_CODES = (
    "Exit codes: 0 right and measured; 2 a bad argument, or no cache folder for --backend oneccl to build its ranks "
    "in; 3 a hang; 4 a rank died, or none could start; 5 wrong data; 130 and 143 interrupted; 74 and 141 the answer "
    "could not be written."
)
_NO_CARDS = "no accelerator was seen: ranks on the CPU, which say nothing about cards (python -m xpu_moe.doctor)"


def main(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    with Stop() as stop:
        begun = time.monotonic()
        for name in sweep():
            streams.warn(f"xpu_moe: removed {name}, left by a run that was killed")
        try:
            plan, joined = _plan(arguments, stop)
        except (ValueError, cache.UnsafeCache, run.CannotStart) as error:
            code = stop.exit_code if stop.signal else 4 if isinstance(error, run.CannotStart) else 2
            return streams.refuse("allreduce", str(error), arguments.json, code)
        unasked = plan.kind == "cpu" and arguments.device is None and arguments.backend == "auto"
        if unasked:
            streams.warn(f"allreduce: {_NO_CARDS}")
        result = run.run(plan, joined, stop)
        result.notes += [_NO_CARDS] if unasked else []
        if stop.signal:
            result.verdict = "interrupted"
        if joined is None:
            kept = remember.replay(result)
            result.notes += [kept] if kept else []
        result.seconds = time.monotonic() - begun
        lost = 0
        if joined is None or joined.rank == 0 or result.verdict != "ok":
            lost = _show(result, arguments)
        if result.verdict == "interrupted":
            return 128 + (stop.signal or signal.SIGINT)
        return lost or report.EXIT[result.verdict]


def _show(result: report.Result, arguments: argparse.Namespace) -> int:
    """The answer and the picture; `streams.emit`'s code, LOST where the picture could not be written."""
    data = result.as_json()
    lost = streams.emit("allreduce", json.dumps(data) if arguments.json else report.text(result))
    if arguments.plot and result.rows:
        try:
            plot.draw(data, Path(arguments.plot))
        except OSError as error:
            streams.warn(f"allreduce: {arguments.plot!r} could not be written: {error.strerror or error}")
            return lost or streams.LOST
        streams.warn(f"allreduce: drew {arguments.plot}")
    return lost


def _plan(arguments: argparse.Namespace, stop: Stop) -> tuple[Plan, run.Joined | None]:
    """The plan, and the rank that torchrun gave us. Raises ValueError, cache.UnsafeCache and run.CannotStart."""
    joined = run.joined(read.snapshot())
    if joined and arguments.world not in (None, joined.world):
        raise ValueError(f"--world: got {arguments.world}, torchrun has {joined.world} ranks")
    if arguments.world is not None and arguments.world < 1:
        raise ValueError(f"--world: got {arguments.world}, wanted at least 1")
    for name, seconds in (("--timeout", arguments.timeout), ("--start-timeout", arguments.start_timeout)):
        if not 0 < seconds < math.inf:
            raise ValueError(f"{name}: got {seconds:g}, wanted more than 0 seconds, and an end")
    bounds.whole("--port", arguments.port, 0, bounds.PORT)
    if arguments.port and joined:
        raise ValueError(f"--port: got {arguments.port}; torchrun's ranks meet at MASTER_PORT, wanted no --port")
    if arguments.plot:
        plot.check(Path(arguments.plot))
    if arguments.backend == "oneccl" and joined:
        raise ValueError("--backend oneccl: starts its own ranks on one host, not under torchrun")
    fault = faults.parse(arguments.inject)
    if arguments.backend == "oneccl":
        cache.folder("oneccl-probe")
    asked = joined.world if joined else arguments.world
    kind, backend, world = run.chosen(arguments.backend, arguments.device, asked, stop)
    if fault.kind and fault.rank >= world:
        raise ValueError(f"--inject: got rank {fault.rank}, wanted 0 to {world - 1}")
    sizes = None if arguments.sizes is None else bounds.listed("--sizes", arguments.sizes, 1 << 40)
    chosen = steps(kind, sizes=sizes, dtype=arguments.dtype, max_bytes=arguments.max_bytes, forms=arguments.forms)
    if kind == "cpu" and joined is None:
        run.check_memory(world, max((step.bytes for step in chosen), default=0))
    address = "env://" if joined else f"tcp://127.0.0.1:{arguments.port}" if arguments.port else ""
    if backend != "oneccl" and (lacking := needs.missing("torch")):
        raise run.CannotStart(lacking)
    graphs = not arguments.no_graph and kind != "cpu"
    plan = Plan(
        backend, kind, world, chosen, arguments.timeout, address, graphs, arguments.inject, arguments.start_timeout
    )
    return plan, joined


def _parser() -> streams.Parser:
    parser = streams.Parser(prog="python -m xpu_moe.probe allreduce", description=HELP, epilog=_CODES)
    add: Any = parser.add_argument
    add("--world", type=int, help="ranks to start (default: every accelerator, 4 on a CPU)")
    add("--device", choices=("xpu", "cuda", "cpu"), help="what the ranks compute on (default: what is there)")
    add("--backend", default="auto", choices=("auto", "xccl", "ccl", "nccl", "gloo", "oneccl"),
        help="auto: torch's for the device; oneccl: oneCCL's own C++ API, without torch")  # fmt: skip
    add("--sizes", help="bytes, comma separated (default: where libraries change kernel, and a decode step's)")
    add("--max-bytes", type=int, default=1 << 62, help="leave out larger sizes")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="of the hidden rows")
    add("--forms", nargs="+", default=list(FORMS), choices=FORMS, help="in place, or into a new tensor")
    add("--no-graph", action="store_true", help="leave graph capture out")
    add("--timeout", type=float, default=30.0, help="seconds without a sign of any rank that count as a hang")
    add("--start-timeout", type=float, default=60.0, help="the same while the ranks load their libraries")
    add("--port", type=int, default=0, help="meet on this port of the loopback (0: in a file)")
    add(
        "--inject",
        default="",
        metavar="KIND@PHASE:RANK",
        help="break a rank on purpose: see probe/_allreduce/faults.py",
    )
    add("--plot", metavar="FILE", help="draw latency over size")
    add("--json", action="store_true", help="one JSON object on stdout")
    return parser
