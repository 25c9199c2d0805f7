"""Our Triton kernels for Battlemage: SPIR-V by Intel's Triton, machine code by Intel's current compiler, no card.

python -m tests.triton.battlemage     prints the table of docs/measurements/bmg-g31-triton.md
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.esimd.nullcard.on_card import answer
from xpu_moe import toolenv
from xpu_moe.esimd.nullcard import packages
from xpu_moe.esimd.tools import isa

ROOT = Path(__file__).parents[2]
# The only releases of Intel's Triton on PyPI are pre-releases, and pip takes one that is named exactly. An overlay: its
# package is called `triton` as well, so it is on the path of one process of its own.
TRITON = "triton-xpu==3.3.0b1"
DEVICE = "bmg-g31"
# Triton's loader on a card (its driver.c) compiles again with 256 registers where the first code spills more bytes.
LOADER_SPILL = 1000
LARGE = "-cl-intel-256-GRF-per-thread"


@dataclass(frozen=True)
class Launch:
    """A launch of our code (see for_battlemage.py) with the machine code that the card would run."""

    case: str
    tokens: int
    inter: int
    dtype: str
    kernel: str
    grid: list[int]
    warps: int
    lanes: int
    slm: int
    flags: str
    dots: list[list[str]]
    matrix_engine: bool
    spirv: str
    code: isa.Kernel

    @property
    def product(self) -> bool:
        return self.kernel in ("up", "down")

    @property
    def cost(self) -> float:
        """Issue slots that all warps need, in the loop over k, for the 2048 multiplications of one dpas (16 cycles)."""
        work = sum(math.prod(map(int, (*a.split("x")[:2], b.split("x")[1]))) for a, b in self.dots) / 2048
        return self.warps * max(loop.slots for loop in self.code.loops) / work

    def __str__(self) -> str:
        return f"{self.case}, M {self.tokens}, I {self.inter}, {self.dtype}: {self.kernel}"


def compiled(folder: Path, *more: str) -> dict:
    """What for_battlemage.py prints; its modules lie in `folder`. Raises ToolEnvironmentError, and AssertionError with
    the program's last lines."""
    overlay = toolenv.overlay("triton-xpu", [TRITON])
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environ |= {"PYTHONPATH": os.pathsep.join((str(ROOT), str(overlay))), "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(Path(__file__).with_name("for_battlemage.py")), str(folder), *more]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
    return json.loads(done.stdout)


@cache
def loaded(spirv: str, flags: str) -> isa.Kernel:
    """The machine code that Triton's loader would take for a module."""
    code = Path(spirv).read_bytes()
    (kernel,) = isa.report(code, DEVICE, flags, simt=True).kernels.values()
    if kernel.spill_bytes > LOADER_SPILL and not flags:
        (kernel,) = isa.report(code, DEVICE, LARGE, simt=True).kernels.values()
    return kernel


def taken_by_the_driver(driver: packages.Driver, found: list[Launch]) -> dict[str, int]:
    """SPIR-V file -> arguments of its kernel, after Intel's Level Zero driver built it for a B70 that is not there."""
    kernels = [part for one in found for part in (one.kernel, one.spirv)]
    return answer(driver, Path(__file__).with_name("in_the_driver.py"), *kernels)


def launches(report: dict) -> list[Launch]:
    return [Launch(**row, code=loaded(row["spirv"], row["flags"])) for row in report["launches"]]


def table(found: list[Launch]) -> str:
    """Markdown, a line for each kernel with other code than the ones before."""
    lines, seen = [], set()
    for one in found:
        if one.spirv in seen:
            continue
        seen.add(one.spirv)
        tile = " ".join(f"{a.rsplit('x', 1)[0]} x {b.rsplit('x', 1)[0]}" for a, b in one.dots[:1])
        cells = (
            one.case, one.tokens, one.inter or "", one.dtype, one.kernel, tile, f"{one.warps} x {one.lanes}",
            one.code.grf, one.code.spill_bytes, max(one.slm, one.code.slm_bytes), one.code.instructions,
            one.code.dpas or "", f"{one.cost:.0f}" if one.product else "",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    head = "| operator | M | I | dtype | kernel | product | warps x lanes | registers | spilled bytes | SLM | "
    return "\n".join((head + "instructions | dpas | slots |", "|---" * 13 + "|", *lines))


if __name__ == "__main__":
    packages.fetch()
    with tempfile.TemporaryDirectory() as name:
        print(table(launches(compiled(Path(name), *sys.argv[1:]))))
