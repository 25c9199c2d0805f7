"""What the machine code of the kernels must hold: hard bounds, and a recorded baseline that it must not exceed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xpu_moe import cache as cache_folder
from xpu_moe.esimd.kernels import instances, launch
from xpu_moe.esimd.tools import isa, programs, spirv

GRF = 128  # 8 hardware threads a vector engine; 256 registers would halve them
SLM_LIMIT = 16 << 10  # 8 groups of 8 threads share the 128 KiB of an Xe core
# 581 GB/s (read bandwidth measured on a B70) over 256 vector engines at 2.4 GHz: 64 bytes take 68 cycles of one engine.
MEMORY_CYCLES = 64 * 256 * 2.4e9 / 581e9
SLOT_LIMIT = 64.0
MIN_THREADS = launch.HARDWARE_THREADS
BASELINES = {  # (device, release of ocloc) -> the committed record that was made with it
    ("pvc", programs.PROGRAMS["ocloc"].checked): Path(__file__).with_name("baseline.json"),
    ("bmg-g31", programs.FETCHED["ocloc"]): Path(__file__).with_name("baseline-bmg-g31.json"),
}

# The case that the slot and thread bounds are stated for: MiniMax at TP4, group 128, fp16, one token.
HIDDEN, INTER, TOP_K, GROUP = 3072, 384, 8, 128
BOUNDED = (
    launch.up("float16", 1, HIDDEN, INTER, TOP_K, GROUP),
    launch.down("float16", 1, HIDDEN, INTER, TOP_K, GROUP),
)

# Messages allowed in a loop that streams weights: block loads (weights "st", activations "ca"), and one gather for the
# scales, 2 bytes each from several rows.
_BLOCK = re.compile(r"load\.ugm\.d(32|64)x\d+t\.a64\.(st|ca)\.ca")
_SCALES = "load.ugm.d16u32.a64.ca.ca"


@dataclass(frozen=True)
class Failure:
    kernel: str
    rule: str
    got: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.rule}: got {self.got}, wanted {self.wanted}"


DEVICES = ("pvc", "bmg", "bmg-g21", "bmg-g31")


def devices() -> dict[str, str]:
    """Device -> "" where an ocloc here compiles for it, else the answer. PVC always; BMG where one knows it."""
    return {name: programs.answer(programs.back_end(name)["ocloc"].path, name) for name in DEVICES}


def weight_bytes(instance: instances.Instance) -> int:
    """Bytes of weights that an iteration of the instance's loop must stream, by its template arguments; 0: none."""
    if instance.family not in ("moe_u4_up", "moe_u4_down"):
        return 0
    rows = 2 if instance.family == "moe_u4_up" else launch.DOWN_ROWS
    return rows * int(instance.arguments[2]) // 2


def check(kernel: isa.Kernel, instance: instances.Instance) -> list[Failure]:
    """The hard bounds of one kernel."""
    failures = []

    def require(holds: bool, rule: str, got: object, wanted: object) -> None:
        if not holds:
            failures.append(Failure(instance.name, rule, str(got), str(wanted)))

    require(kernel.spill_bytes == 0, "spilled bytes", kernel.spill_bytes, 0)
    require(kernel.scratch_bytes == 0, "scratch bytes", kernel.scratch_bytes, 0)
    require(not kernel.stack_calls, "stack calls", kernel.stack_calls, False)
    require(kernel.grf == GRF, "registers", kernel.grf, GRF)
    require(kernel.slm_bytes <= SLM_LIMIT, "SLM bytes of a group", kernel.slm_bytes, f"<= {SLM_LIMIT}")
    expected = weight_bytes(instance)
    if not expected:
        return failures
    loop = kernel.weight_loop
    require(loop is not None, "a loop that streams weights", "none", f"{expected} bytes an iteration")
    if loop is None:
        return failures
    require(loop.weight_bytes == expected, "weight bytes an iteration", loop.weight_bytes, expected)
    others = {m: n for m, n in loop.messages.items() if not _BLOCK.fullmatch(m) and m != _SCALES}
    require(not others, "messages of the loop", others, "block loads and the gather of scales")
    require(loop.messages.get(_SCALES, 0) <= 1, "gathers of scales", loop.messages.get(_SCALES), 1)
    if instance.name in {shape.kernel for shape in BOUNDED}:
        cost = loop.slots_per_64_bytes
        require(cost <= SLOT_LIMIT, "issue slots per 64 bytes of weights", f"{cost:.1f}", f"<= {SLOT_LIMIT:.0f}")
    return failures


def check_threads() -> list[Failure]:
    return [
        Failure(shape.kernel, "hardware threads at M=1, TP4", str(shape.threads), f">= {MIN_THREADS}")
        for shape in BOUNDED
        if shape.threads < MIN_THREADS
    ]


# ---- the baseline: slots of each loop, per ocloc version and device ----


def measured(kernels: dict[str, isa.Kernel]) -> dict[str, dict[str, int]]:
    """kernel -> what the baseline records: instructions, and slots of the weight loop."""
    return {
        name: {"instructions": k.instructions, "loop_slots": k.weight_loop.slots if k.weight_loop else 0}
        for name, k in sorted(kernels.items())
    }


def baseline_file(device: str) -> Path:
    """The committed record where this ocloc is of the release that it was made with, else one of this machine's."""
    found = programs.back_end(device)["ocloc"]
    if found.as_checked and (device, found.checked) in BASELINES:
        return BASELINES[device, found.checked]
    version = re.sub(r"[^\w.]+", "_", found.version)
    return cache_folder.folder("esimd_baseline") / f"{device}-{version}.json"


def compare(kernels: dict[str, isa.Kernel], device: str, record: bool = False) -> tuple[list[Failure], str]:
    """(what got worse than recorded, a sentence on the baseline). Without a record for this ocloc, makes one."""
    file, now = baseline_file(device), measured(kernels)
    if record or not file.exists():
        version = programs.back_end(device)["ocloc"].version
        file.write_text(json.dumps({"ocloc": version, "kernels": now}, indent=1) + "\n")
        return [], f"recorded in {file}"
    known = json.loads(file.read_text())["kernels"]
    failures = [
        Failure(name, f"{key} against the baseline", str(value), f"<= {known[name][key]}")
        for name, row in now.items()
        for key, value in row.items()
        if name in known and value > known[name][key]
    ]
    missing = sorted(set(now) - set(known))
    failures += [Failure(name, "baseline", "no record", "one (report --record)") for name in missing]
    return failures, f"compared with {file}"


@cache
def compile_all(device: str, keep: Path | None = None) -> dict[str, isa.Kernel]:
    """Every kernel of the committed SPIR-V as machine code, by name. Raises IsaError."""
    kernels = {}
    for name in instances.modules():
        for kernel in isa.report((spirv.FOLDER / f"{name}.spv").read_bytes(), device, keep=keep).kernels.values():
            kernels[kernel.name.removeprefix(spirv.KERNEL_PREFIX)] = kernel
    return kernels
