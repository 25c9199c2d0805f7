"""A session: one device's queue, the kernels loaded for it, and what the device lacks.

There is one for each XPU index, made when a backend is first asked about it, and one for the OpenCL CPU device.
"""

from __future__ import annotations

import atexit
import json
import sys
from functools import cache
from typing import Any

import torch

from xpu_moe.env import read
from xpu_moe.esimd.runtime import spirv
from xpu_moe.esimd.runtime.library import Library, RuntimeFailure, library
from xpu_moe.esimd.runtime.plan import Plan, install
from xpu_moe.esimd.runtime.room import KernelMissing, Room

_PREFIX = "__sycl_kernel_"  # what the compiler puts in front of a free function's name


class Session:
    """A device of this process. `key` names it in plans ("xpu:0", "opencl-cpu")."""

    def __init__(self, loaded: Library, queue: int, key: str) -> None:
        self.library, self.queue, self.key = loaded, queue, key
        self.device = loaded.device(queue)
        self._plans: set[int] = set()
        self._modules: dict[tuple[str, str], dict[str, int]] = {}
        self._kernels: dict[tuple[str, str, int], int] = {}

    def install(self, plan: Plan, room: Room) -> int:
        """Load the plan's kernels and hand it to the library, once; returns its identity."""
        if plan.identity not in self._plans:
            arguments = {
                launch.kernel: (launch.module, len(launch.arguments))
                for program in plan.programs.values()
                for launch in program.launches
            }
            kernels = {name: self.kernel(room, module, name, count) for name, (module, count) in arguments.items()}
            install(self.library, plan, kernels)
            self._plans.add(plan.identity)
        return plan.identity

    def kernel(self, room: Room, module: str, name: str, arguments: int) -> int:
        """The address of a kernel that takes `arguments` arguments, its module loaded where it is not yet.

        Raises KernelMissing, SpirvError, RuntimeFailure (the driver's refusal).
        """
        key = (room.name, name, arguments)
        if key not in self._kernels:
            lacking = room.lacking(self.device)
            if lacking:
                raise KernelMissing(f"{room.name} kernel {name}: {lacking}")
            owners = self._module(room, module)
            if _PREFIX + name not in owners:
                known = ", ".join(sorted(owner.removeprefix(_PREFIX) for owner in owners))
                raise KernelMissing(f"{room.name} kernel {name}: not in {module}.spv, which has {known}")
            kernel = self.library.kernel(owners[_PREFIX + name], _PREFIX + name)
            found = self.library.kernel_arguments(kernel)
            if found != arguments:
                raise KernelMissing(
                    f"{room.name} kernel {name}: takes {found} arguments, wanted {arguments}: the module is of another "
                    f"version, rebuild it with `{room.build}`"
                )
            self._kernels[key] = kernel
        return self._kernels[key]

    def load(self, room: Room, module: str) -> None:
        """Build a module now, so that a driver's refusal is known before the first call."""
        self._module(room, module)

    def _module(self, room: Room, module: str) -> dict[str, int]:
        """Kernel name -> address of the built module that holds it."""
        if (room.name, module) not in self._modules:
            image, what = room.read(module), f"{room.name} module {module}.spv"
            spirv.version(image, what)
            handle = self.library.module(self.queue, image, room.options)
            self._modules[room.name, module] = dict.fromkeys(spirv.entry_points(image, what), handle)
        return self._modules[room.name, module]


@cache
def for_xpu(index: int) -> Session:
    """The session of an XPU. Raises LibsyclError, BuildError, RuntimeFailure (torch's own reason too)."""
    loaded = library()
    try:
        queue = torch.xpu.current_stream(index).sycl_queue
    except (AttributeError, AssertionError, RuntimeError) as error:
        raise RuntimeFailure(f"torch.xpu gives no queue for device {index}: {str(error).splitlines()[0]}") from None
    return Session(ready(loaded, "XPU"), queue, f"xpu:{index}")


def for_opencl_cpu(major: int = 9) -> Session:
    """The session of the OpenCL CPU device (tests, probes); its operators take CPU tensors in USM."""
    return _for_opencl_cpu(major)


@cache
def _for_opencl_cpu(major: int) -> Session:
    from xpu_moe.esimd.runtime import standalone

    started = standalone.start(major)
    return Session(ready(started.library, "CPU"), started.queue, "opencl-cpu")


_registered: set[str] = set()


def ready(loaded: Library, key: str) -> Library:
    """Register the operators for a dispatch key, once, and start tracing where it is asked for."""
    from xpu_moe.esimd.runtime.operators import NAMES

    if key not in _registered:
        for name in NAMES:
            loaded.register(name, key)
        _registered.add(key)
        if read.flag("XPU_MOE_TRACE_KERNELS"):
            loaded.trace(True)
            atexit.register(report_trace, loaded)
    return loaded


def report_trace(loaded: Library, out: Any = None) -> None:
    """Print the trace as one JSON object on stderr (stdout may hold a tool's own JSON)."""
    print(json.dumps({"xpu_moe_kernels": loaded.trace_report()}), file=out or sys.stderr, flush=True)
