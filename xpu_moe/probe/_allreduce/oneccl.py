"""The ranks of `--backend oneccl`: a small C++ program on oneCCL's own API, built on first use.

On CPU ranks oneCCL comes from a tool environment (pinned wheels) and g++ compiles; on Intel GPUs the oneAPI that is
there is used, with icpx.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xpu_moe import cache
from xpu_moe.env import read
from xpu_moe.probe._allreduce.plan import Plan
from xpu_moe.probe._watch.patience import patiently
from xpu_moe.probe._watch.signals import Stop
from xpu_moe.probe._watch.supervise import Launch

SOURCE = Path(__file__).with_name("oneccl.cpp")
WHEELS = ("oneccl==2022.1.2", "oneccl-cpu==2022.1.2", "oneccl-devel==2022.1.2", "oneccl-cpu-devel==2022.1.2")
_MAKE_ENVIRONMENT = (
    "import sys; from xpu_moe import toolenv; print(toolenv.ensure('oneccl', sys.argv[1:]))"  # in a child: stoppable
)
# Host buffers only: no Level Zero (an old loader aborts the process), no MPI launcher, the loopback.
CPU_ENVIRONMENT = {
    "CCL_ZE_ENABLE": "0",
    "CCL_YIELD": "sched_yield",  # ranks outnumber cores: the default spins, 30 ms a call for 0.1
    "CCL_WORKER_WAIT": "0",
    "CCL_ATL_TRANSPORT": "ofi",
    "CCL_KVS_IFACE": "lo",
    "CCL_PROCESS_LAUNCHER": "none",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "lo",
}


class BuildError(RuntimeError):
    """The helper cannot be built; the message says what is missing."""


@dataclass(frozen=True)
class _Tools:
    """How to compile and run: the compiler's command, and what the ranks need in their environment where you have not
    set it, or in any case (the library that was linked)."""

    compile: tuple[str, ...]
    environ: Mapping[str, str]
    forced: Mapping[str, str]


def launches(plan: Plan, folder: Path, environ: Mapping[str, str], stop: Stop) -> list[Launch]:
    """The ranks of a plan. Builds the helper when it is not in the cache. Raises BuildError."""
    tools = _cpu_tools(stop) if plan.kind == "cpu" else _xpu_tools()
    program = _build(tools, stop)
    steps = folder / "plan.txt"
    steps.write_text("".join(f"{s.bytes} {s.dtype} {s.form} {s.rounds} {s.calls}\n" for s in plan.steps))
    defaults = {name: value for name, value in tools.environ.items() if name not in environ}
    found = []
    for rank in range(plan.world):
        local = {"CCL_LOCAL_RANK": str(rank), "CCL_LOCAL_SIZE": str(plan.world)}
        found.append(
            Launch(rank, _command(program, steps, rank, plan, folder), {**environ, **defaults, **tools.forced, **local})
        )
    return found


def _command(program: Path, steps: Path, rank: int, plan: Plan, folder: Path):
    def command(events: int, stack: Path) -> Sequence[str]:
        return (str(program), str(steps), str(rank), str(plan.world), str(events), str(os.getpid()),
                str(stack), str(folder / "kvs"), plan.inject)  # fmt: skip

    return command


def _cpu_tools(stop: Stop) -> _Tools:
    compiler = shutil.which("g++")
    if compiler is None:
        raise BuildError("g++ is not installed: apt-get install g++")
    made = patiently([sys.executable, "-c", _MAKE_ENVIRONMENT, *WHEELS], stop, "the oneCCL environment")
    root = Path(made.strip().splitlines()[-1])
    lib = root / "lib"
    link = (f"-L{lib}", "-l:libccl.so.1.0", f"-Wl,-rpath,{lib}", f"-I{root / 'include'}")
    paths = {"CCL_ROOT": str(root), "LD_LIBRARY_PATH": str(lib)}
    return _Tools((compiler, "-std=c++17", "-O2", "-w", str(SOURCE), *link), CPU_ENVIRONMENT, paths)


def _xpu_tools() -> _Tools:
    compiler = shutil.which("icpx")
    root = read.text("CCL_ROOT")
    if compiler is None or not root:
        raise BuildError("icpx and oneCCL's headers are needed: source oneAPI's setvars.sh (it sets CCL_ROOT), or take "
                         "--device cpu, or torch's backend")  # fmt: skip
    link = (f"-L{root}/lib", "-lccl", f"-Wl,-rpath,{root}/lib", f"-I{root}/include")
    return _Tools((compiler, "-std=c++17", "-O2", "-fsycl", "-DPROBE_SYCL", str(SOURCE), *link), {}, {})


def _build(tools: _Tools, stop: Stop) -> Path:
    """The compiled helper, from the cache where source and command are the same."""
    key = hashlib.sha256(SOURCE.read_bytes() + "\0".join(tools.compile).encode()).hexdigest()[:16]
    program = cache.folder("oneccl-probe") / f"oneccl-{key}"
    if not program.exists():
        part = program.with_suffix(f".{os.getpid()}")
        try:
            patiently([*tools.compile, "-o", str(part)], stop, "the oneCCL helper")
            part.replace(program)
        finally:
            part.unlink(missing_ok=True)
    return program
