"""The launch library without a GPU: libsycl from a tool environment and the OpenCL CPU device, beside a CPU torch.

Everything of the runtime road is real here (queue, USM, SPIR-V, plan, operator, dispatcher) but the device: the twins
run, the ESIMD kernels cannot. For tests and probes only; a process that has torch's own libsycl must not use it.
"""

from __future__ import annotations

import ctypes as C
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from xpu_moe import toolenv
from xpu_moe.env import read
from xpu_moe.esimd.runtime import libsycl
from xpu_moe.esimd.runtime.library import Library, library

# What one environment must hold, all of one release (a newer intel-cmplr-lib-ur has no OpenCL adapter;
# without intel-cmplr-lib-rt the compiler does not load).
_PACKAGES = ("intel-sycl-rt", "intel-opencl-rt", "intel-cmplr-lib-rt", "intel-cmplr-lib-ur")


def packages(major: int = 9) -> list[str]:
    """The pinned packages of the OpenCL environment for a libsycl major version."""
    release = libsycl.RELEASES[major]
    return [f"{name}=={release}" for name in _PACKAGES]


def environment(major: int = 9) -> Path:
    """The root of the tool environment, made where it is missing. Raises toolenv.ToolEnvironmentError."""
    return toolenv.ensure("opencl-cpu", packages(major))


@dataclass(frozen=True)
class Standalone:
    """A queue on the OpenCL CPU device, and USM tensors for it."""

    library: Library
    queue: int

    def tensor(self, source: torch.Tensor) -> torch.Tensor:
        """A copy of a CPU tensor in shared USM, contiguous. The memory lives as long as the process."""
        source = source.detach().contiguous()
        size = max(64, source.numel() * source.element_size())
        address = self.library.alloc(self.queue, size)
        memory = (C.c_uint8 * size).from_address(address)
        flat = torch.frombuffer(memory, dtype=torch.uint8)[: source.numel() * source.element_size()]
        target = flat.view(source.dtype).view(source.shape) if source.numel() else torch.empty_like(source)
        return target.copy_(source)

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Shared USM filled with 0xCD, so that what no kernel wrote is seen."""
        size = torch.tensor([], dtype=dtype).element_size()
        for extent in shape:
            size *= extent
        return self.tensor(torch.full((size,), 0xCD, dtype=torch.uint8)).view(dtype).view(shape)

    def wait(self) -> None:
        self.library.wait(self.queue)


def start(major: int = 9) -> Standalone:
    """The one Standalone of this process: libsycl of the tool environment, and a CPU queue for CPU tensors' operators.

    Its queue has profiling under XPU_MOE_TRACE_KERNELS=1.

    Raises LibsyclError when the process holds another libsycl, RuntimeFailure when the OpenCL device is not found.
    """
    return _start(major)


@cache
def _start(major: int) -> Standalone:
    found = libsycl.loaded()
    if found is None:
        root = environment(major)
        # The wheel's .icd file holds a placeholder path; without this there are no devices and no error.
        read.export("OCL_ICD_FILENAMES", str(root / "lib" / "libintelocl.so"))
        C.CDLL(str(root / "lib" / f"libsycl.so.{major}"), mode=C.RTLD_GLOBAL)
    elif found.major != major:
        raise libsycl.LibsyclError(f"libsycl: got {found.path}, wanted libsycl.so.{major} for the OpenCL CPU device")
    loaded = library()
    queue = loaded.queue(profiling=read.flag("XPU_MOE_TRACE_KERNELS"))
    loaded.use_for_cpu_tensors(queue)
    return Standalone(loaded, queue)
