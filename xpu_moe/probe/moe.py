"""`python -m xpu_moe.probe moe`: is the INT4 MoE of this device right, and how fast is it?

Random weights of one layer, random routing, poisoned outputs; the result is compared with the float64 reference, then
timed with other routes at every call. The floor is the time in which the memory delivers what must be read once: the
distinct experts' weights and scales, x and the output.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from xpu_moe import bounds, cache, needs, streams
from xpu_moe.probe.moe_shape import TOLERANCE, Shape

HELP = "INT4 MoE layer of this device: numbers against float64, us, GB/s, share of the memory's bandwidth"

OK, WRONG, CANNOT = 0, 1, 2
_NAME = "xpu_moe.probe moe"
_CODES = (
    "Exit codes: 0 right; 1 wrong numbers; 2 it could not be run: a bad argument, no device, no backend, a program "
    "that is missing, a cache folder that cannot be used; 74 and 141 the answer could not be written."
)
_SIZES = "--tokens, --hidden-size, --intermediate-size, --num-experts"
# flag -> the module of the Intel room whose `probe(shape, call)` serves it: {"ok", "error", "tolerance", "lines", …}
_SOURCES = {"emulate": "xpu_moe.esimd.runtime.emulate_probe", "opencl": "xpu_moe.esimd.runtime.opencl_probe"}


def parser() -> streams.Parser:
    """The command's flags; the defaults are MiniMax-M2 at tensor parallelism 4, one token."""
    made = streams.Parser(prog="python -m xpu_moe.probe moe", description=HELP, epilog=_CODES)
    made.add_argument("--device", choices=("xpu", "cuda", "cpu"), help="device kind (default: the first that is found)")
    made.add_argument("-m", "--tokens", type=int, default=1, help="M, tokens of the step")
    made.add_argument("--hidden-size", type=int, default=3072, help="H")
    made.add_argument("--intermediate-size", type=int, default=1536, help="I of the whole model")
    made.add_argument("--tp", type=int, default=4, help="ranks that share I")
    made.add_argument("--num-experts", type=int, default=256, help="E")
    made.add_argument("--top-k", type=int, default=8)
    made.add_argument("--group-size", type=int, default=128, help="weights that share a scale: 32, 64 or 128")
    made.add_argument("--dtype", choices=tuple(TOLERANCE), default="float16", help="of the activations")
    made.add_argument("--nibble", choices=("u4", "s4"), default="u4")
    made.add_argument("--activation", default="silu")
    made.add_argument("--routed", action="store_true", help="from router logits to output (moe_u4_routed)")
    made.add_argument("--backend", help="ask for one backend by name")
    made.add_argument("--rounds", type=int, help="rounds of the timing (default: 20, on a CPU 3)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--emulate", action="store_true", help="run the ESIMD source on the host (needs clang-22)")
    made.add_argument("--opencl", action="store_true", help="run the SIMT twin on the OpenCL CPU device, and time our "
                      "host code and the submission")  # fmt: skip
    made.add_argument("--json", action="store_true", help="one JSON object on stdout, all else on stderr")
    return made


def main(argv: Sequence[str]) -> int:
    """0: right; 1: wrong numbers; 2: it could not be run (the reason is on stderr and in the JSON); 74, 141:
    `streams.emit`."""
    arguments = parser().parse_args(argv)
    try:
        if any(getattr(arguments, flag) for flag in _SOURCES):
            cache.folder()  # what they build lies there; said before torch is loaded
    except cache.UnsafeCache as error:
        return streams.refuse(_NAME, str(error), arguments.json, CANNOT)
    if lacking := needs.unusable("torch"):
        return streams.refuse(_NAME, lacking, arguments.json, CANNOT)
    try:
        report = _report(arguments)
    except Exception as error:
        if not _expected(error):
            raise
        return streams.refuse(_NAME, _reason(error), arguments.json, CANNOT)
    lost = streams.emit(_NAME, json.dumps(report) if arguments.json else _text(report))
    return lost or (OK if report["ok"] else WRONG)


def _expected(error: Exception) -> bool:
    """Whether an error is an answer (bad flags, no backend, a tool that is missing) and not a fault of ours."""
    from xpu_moe.ops.contract import NoBackend
    from xpu_moe.probe.moe_call import CannotProbe

    names = {"ToolEnvironmentError", "MissingProgram", "BuildError", "LibsyclError", "KernelMissing", "RuntimeFailure"}
    known = isinstance(error, NoBackend | CannotProbe | ValueError | ModuleNotFoundError | cache.UnsafeCache)
    return known or type(error).__name__ in names or _too_large(error)


def _too_large(error: Exception) -> bool:
    """Whether an allocator refused: torch raises its own error for a device, a plain RuntimeError on a CPU."""
    words = ("can't allocate memory", "Storage size calculation overflowed")
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(word in str(error) for word in words)
    )


def _reason(error: Exception) -> str:
    if not _too_large(error):
        return str(error)
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return f"the shape is too large for this device: {first}; wanted smaller {_SIZES} or a larger --tp"


def _report(arguments: argparse.Namespace) -> dict:
    from xpu_moe.probe import moe_call

    if arguments.rounds is not None:
        bounds.whole("--rounds", arguments.rounds, 1, bounds.ROUNDS)
    bounds.whole("--seed", arguments.seed, 0, bounds.SEED)
    shape = Shape(
        arguments.tokens, arguments.hidden_size, arguments.intermediate_size, arguments.tp, arguments.num_experts,
        arguments.top_k, arguments.group_size, arguments.dtype, arguments.nibble, arguments.activation,
        arguments.routed,
    )  # fmt: skip
    moe_call.check_shape(shape)
    kind = moe_call.device_kind(arguments.device)
    moe_call.check_memory(shape, kind)
    call = moe_call.make(shape, kind, arguments.seed)
    found = {
        flag: importlib.import_module(module).probe(shape, call)
        for flag, module in _SOURCES.items()
        if getattr(arguments, flag)
    }  # before the measurement, which may reorder the weights in place
    report = {"shape": asdict(shape) | {"inter": shape.inter}, **moe_call.measure(call, arguments), **found}
    report["ok"] = report["ok"] and all(part["ok"] for part in found.values())
    return report


def _text(report: dict) -> str:
    """The report in lines for reading."""
    shape = report["shape"]
    lines = [
        f"device    {report['device']} ({report['architecture'] or 'architecture unknown'})",
        f"shape     M {shape['tokens']}, H {shape['hidden_size']}, I {shape['inter']} of TP{shape['tp']}, "
        f"E {shape['num_experts']}, top_k {shape['top_k']}, group {shape['group_size']}, {shape['dtype']}, "
        f"{shape['nibble']}, {shape['activation']}",
        f"backend   {report['backend']}: {report['reason']}",
        *(f"          not {name}: {reason}" for name, reason in report["refused"]),
        f"numbers   {_verdict(report)}",
        f"time      {report['us']:.1f} us ({report['us_low']:.1f} to {report['us_high']:.1f}; {report['method']}), "
        f"host {report['host_us']:.1f} us a call",
        f"traffic   {report['bytes'] / 1e6:.2f} MB must be read, {report['gbps']:.1f} GB/s",
        f"memory    {report['percent_of_bandwidth']:.1f} % of {report['bandwidth'] / 1e9:.0f} GB/s "
        f"({report['bandwidth_source']}); {report['times_floor']:.2f} x the floor of {report['floor_us']:.1f} us"
        if report["bandwidth"]
        else f"memory    bandwidth unknown ({report['bandwidth_source']}): no floor",
    ]
    for flag in _SOURCES:
        if flag in report:
            lines += [f"{flag:9} {_verdict(report[flag])}", *(f"          {line}" for line in report[flag]["lines"])]
    return "\n".join(lines)


def _verdict(found: dict) -> str:
    word = "right" if found["ok"] else "WRONG"
    return f"{word}: relative error {found['error']:.2e} against float64 (limit {found['tolerance']:g})"
