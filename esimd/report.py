"""`python -m xpu_moe.esimd report`: the machine code of the shipped SPIR-V against its bounds, beside the rival's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from xpu_moe import cache, files, streams
from xpu_moe.esimd.kernels import instances
from xpu_moe.esimd.tools import gates, isa, programs, rival, spirv
from xpu_moe.toolenv import ToolEnvironmentError

HELP = "registers, spills, messages and issue slots of the shipped kernels; exit 1 where a bound is broken"
_CODES = (
    "Exit codes: 0 every bound holds; 1 one is broken, or a compiler refused; 2 a bad argument, a program that is "
    "missing, or a cache folder that cannot be used; 74 and 141 the answer could not be written."
)


def collect(device: str, keep: Path | None, record: bool, with_rival: bool) -> dict:
    """The whole report as one JSON-able object; "failures" is empty when every bound holds."""
    kernels = gates.compile_all(device) if keep is None else gates.compile_all(device, keep)
    failures = gates.check_threads()
    for module in instances.modules().values():
        for instance in module.instances:
            failures += gates.check(kernels[instance.name], instance)
    worse, baseline = gates.compare(kernels, device, record)
    answer = {
        "device": device,
        "versions": {
            name: str(found)
            for name, found in {**programs.back_end(device), "spirv-dis": programs.find("spirv-dis")}.items()
        },
        "formula": isa.FORMULA,
        "memory_cycles_per_64_bytes": round(gates.MEMORY_CYCLES, 1),
        "slot_limit": gates.SLOT_LIMIT,
        "threads_m1_tp4": {shape.kernel: shape.threads for shape in gates.BOUNDED},
        "baseline": baseline,
        "stale": spirv.stale(),
        "kernels": {name: _row(kernel) for name, kernel in sorted(kernels.items())},
        "failures": [str(f) for f in [*failures, *worse]],
    }
    if with_rival:
        threads = rival.threads(1, gates.HIDDEN, gates.INTER, gates.TOP_K)
        answer["rival"] = {
            "what": "llm-scaler's WS design, rebuilt from its description: an estimate",
            **{n: {**_row(kernel), "threads_m1_tp4": threads[n]} for n, kernel in rival.report(device).items()},
        }
    return answer


def _row(kernel: isa.Kernel) -> dict:
    row = {k: v for k, v in dataclasses.asdict(kernel).items() if k not in ("name", "loops")}
    if loop := kernel.weight_loop:
        row["loop"] = {**dataclasses.asdict(loop), "slots_per_64_bytes": loop.slots_per_64_bytes}
    return row


def shown(answer: dict) -> list[str]:
    """The report of a device in lines for reading."""
    lines = [
        f"{answer['device']}, " + ", ".join(f"{k} {v}" for k, v in answer["versions"].items()),
        answer["formula"],
        f"memory floor {answer['memory_cycles_per_64_bytes']} cycles per 64 bytes, bound {answer['slot_limit']:.0f}\n",
        f"{'kernel':38} {'GRF':>4} {'spill':>5} {'SLM':>5} {'instr':>6} {'loop slots':>10} {'per 64 B':>8}  messages",
    ]
    rows = list(answer["kernels"].items())
    rows += [(f"(rival, estimate) {n}", r) for n, r in answer.get("rival", {}).items() if n != "what"]
    for name, row in rows:
        loop = row.get("loop")
        text = f"{name:38} {row['grf']:4} {row['spill_bytes']:5} {row['slm_bytes']:5} {row['instructions']:6} "
        if loop:
            histogram = ", ".join(f"{n}x {m}" for m, n in loop["messages"].items())
            text += f"{loop['slots']:10} {loop['slots_per_64_bytes']:8.1f}  {histogram}"
        lines.append(text.rstrip())
    lines.append(
        "\nhardware threads at M=1, TP4: " + ", ".join(f"{k} {v}" for k, v in answer["threads_m1_tp4"].items())
    )
    if "rival" in answer:
        lines.append(
            "of the rival: " + ", ".join(f"{n} {answer['rival'][n]['threads_m1_tp4']}" for n in ("up", "down"))
        )
    lines.append(f"baseline: {answer['baseline']}")
    lines += [f"stale: {name}: {reason}" for name, reason in answer["stale"].items()]
    lines += [f"FAILED {failure}" for failure in answer["failures"]]
    return [*lines, "every bound holds" if not answer["failures"] else f"{len(answer['failures'])} bounds broken"]


def _refusal(device: str) -> str:
    """ "" where an ocloc here compiles for the device, else its answer. Raises MissingProgram."""
    return programs.answer(programs.back_end(device)["ocloc"].path, device)


def _prepare(devices: Sequence[str], with_rival: bool) -> None:
    """What a report needs of the cache, before the seconds that the kernels take: the places of the baselines, and the
    rival's compiler. Raises UnsafeCache, ToolEnvironmentError."""
    for device in devices:
        gates.baseline_file(device)
    if with_rival:
        programs.compiler_root()


def main(argv: Sequence[str]) -> int:
    """Exit 0: all bounds hold. 1: one is broken, or a compiler refused. 2: bad arguments (also a device that ocloc does
    not know), a program that is missing (the line to type), or a cache folder that cannot be used. 74, 141:
    `streams.emit`."""
    parser = streams.Parser(prog="python -m xpu_moe.esimd report", description=HELP, epilog=_CODES)
    parser.add_argument(
        "--device", help="ocloc's device name (default: pvc, and the bmg ones where an ocloc here knows them)"
    )
    parser.add_argument("--asm", type=Path, metavar="DIR", help="leave the assembly text of every kernel there")
    parser.add_argument("--record", action="store_true", help="record the baseline anew")
    parser.add_argument("--no-rival", action="store_true", help="leave the estimate for llm-scaler's kernel out")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(argv)
    try:
        files.check_folder("--asm", options.asm)
    except ValueError as error:
        return streams.refuse("report", str(error), options.json)
    try:
        known = {options.device: _refusal(options.device)} if options.device else gates.devices()
        unknown = {name: why for name, why in known.items() if why}
        if options.device in unknown:
            wanted = f"wanted one that ocloc here compiles for, such as {', '.join(gates.DEVICES)}"
            wrong = f"--device: got {options.device!r}: ocloc says {unknown[options.device]!r}; {wanted}"
            return streams.refuse("report", wrong, options.json)
        _prepare([name for name in known if name not in unknown], not options.no_rival)
        for name, why in unknown.items():
            streams.warn(f"not for {name}: ocloc says {why!r}")
        answers = [
            collect(name, options.asm, options.record, not options.no_rival) for name in known if name not in unknown
        ]
    except (programs.MissingProgram, cache.UnsafeCache) as error:
        return streams.refuse("report", str(error), options.json, programs.MissingProgram.exit_code)
    except (isa.IsaError, spirv.CompileError, ToolEnvironmentError) as error:
        return streams.refuse("report", str(error), options.json, 1)
    if options.json:
        text = json.dumps({"reports": answers, "unknown_devices": unknown})
    else:
        text = "\n".join(line for answer in answers for line in shown(answer))
    return streams.emit("report", text) or int(any(answer["failures"] for answer in answers))
