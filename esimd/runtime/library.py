"""The launch library, loaded: a thin typed face of its C interface (library.cpp). The cold road only."""

from __future__ import annotations

import ctypes as C
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from xpu_moe.esimd.runtime.build import build
from xpu_moe.esimd.runtime.libsycl import LibsyclError, require_loaded

_P, _I, _L, _S, _N = C.c_void_p, C.c_int, C.c_int64, C.c_char_p, C.c_size_t
_LONGS = C.POINTER(C.c_int64)
# name -> (result, arguments)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "xm_error": (_S, []),
    "xm_built_for": (_I, []),
    "xm_queue": (_P, [_I, _I]),
    "xm_use_for_cpu_tensors": (_I, [_P]),
    "xm_alloc": (_P, [_P, _N]),
    "xm_free": (None, [_P, _P]),
    "xm_wait": (_I, [_P]),
    "xm_device": (_S, [_P]),
    "xm_module": (_P, [_P, _S, _N, _S]),
    "xm_kernel": (_P, [_P, _S]),
    "xm_kernel_arguments": (_I, [_P]),
    "xm_plan": (_P, [_L, _S, _I, _L]),
    "xm_plan_slot": (_I, [_P, _S, _I, _S, _I, _I, _L, _L, _LONGS, _I]),
    "xm_plan_program": (_I, [_P, _L, _L, _LONGS, _N]),
    "xm_plan_add": (_I, [_P]),
    "xm_register": (_I, [_S, _S]),
    "xm_graph_begin": (_P, [_P]),
    "xm_graph_end": (_P, [_P, _P]),
    "xm_graph_replay": (_I, [_P, _P]),
    "xm_noop": (None, [_I]),
    "xm_skipped": (_L, []),
    "xm_trace": (None, [_I]),
    "xm_trace_clear": (None, []),
    "xm_trace_json": (_S, []),
}


class RuntimeFailure(RuntimeError):
    """The launch library or the SYCL runtime below it refused; the message is theirs."""


class Library:
    """The C functions of the launch library; those that can fail raise RuntimeFailure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._c = C.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments

    def _checked(self, value: Any, bad: Any) -> Any:
        if value == bad:
            raise RuntimeFailure(self._c.xm_error().decode(errors="replace"))
        return value

    def built_for(self) -> tuple[int, int]:
        """(major, minor) of the libsycl whose headers were used."""
        return divmod(self._c.xm_built_for(), 100)

    def queue(self, *, gpu: bool = False, profiling: bool = False) -> int:
        """A new in-order queue of our own, by address. Raises RuntimeFailure where there is no such device."""
        return self._checked(self._c.xm_queue(gpu, profiling), None)

    def use_for_cpu_tensors(self, queue: int) -> None:
        """Operators called with CPU tensors submit to this queue (the tensors must lie in its USM)."""
        self._checked(self._c.xm_use_for_cpu_tensors(queue), -1)

    def alloc(self, queue: int, size: int) -> int:
        """Shared USM, by address."""
        return self._checked(self._c.xm_alloc(queue, size), None)

    def free(self, queue: int, address: int) -> None:
        self._c.xm_free(queue, address)

    def wait(self, queue: int) -> None:
        self._checked(self._c.xm_wait(queue), -1)

    def device(self, queue: int) -> dict[str, Any]:
        """Name, driver and what the device can do (keys as in library.cpp's device_json)."""
        return json.loads(self._checked(self._c.xm_device(queue), None))

    def module(self, queue: int, spirv: bytes, options: str) -> int:
        """Build a SPIR-V module for the queue's device. Raises RuntimeFailure with the driver's log."""
        return self._checked(self._c.xm_module(queue, spirv, len(spirv), options.encode()), None)

    def kernel(self, module: int, name: str) -> int:
        return self._checked(self._c.xm_kernel(module, name.encode()), None)

    def kernel_arguments(self, kernel: int) -> int:
        return self._checked(self._c.xm_kernel_arguments(kernel), -1)

    def plan(self, identity: int, what: str, tokens_slot: int, limit: int) -> int:
        return self._checked(self._c.xm_plan(identity, what.encode(), tokens_slot, limit), None)

    def plan_slot(
        self, plan: int, name: str, dtype: int, dtype_name: str, row_stride: bool, absent: bool, alignment: int,
        item_bytes: int, shape: Sequence[int],
    ) -> None:  # fmt: skip
        dims = (C.c_int64 * len(shape))(*shape)
        done = self._c.xm_plan_slot(
            plan, name.encode(), dtype, dtype_name.encode(), row_stride, absent, alignment, item_bytes, dims, len(shape)
        )
        self._checked(done, -1)

    def plan_program(self, plan: int, tokens: int, workspace_bytes: int, words: Sequence[int]) -> None:
        flat = (C.c_int64 * len(words))(*words)
        self._checked(self._c.xm_plan_program(plan, tokens, workspace_bytes, flat, len(words)), -1)

    def plan_add(self, plan: int) -> bool:
        """Hand the plan over; False when one of its id was there already."""
        return bool(self._checked(self._c.xm_plan_add(plan), -1))

    def register(self, operator: str, key: str) -> None:
        """Register the C++ implementation of `xpu_moe::operator` for a dispatch key."""
        self._checked(self._c.xm_register(operator.encode(), key.encode()), -1)

    def graph(self, queue: int, record: Callable[[], object]) -> Callable[[], None]:
        """Capture what `record` submits to the queue; returns a function that replays it."""
        started = self._checked(self._c.xm_graph_begin(queue), None)
        try:
            record()
        finally:
            executable = self._checked(self._c.xm_graph_end(queue, started), None)
        return lambda: self._checked(self._c.xm_graph_replay(queue, executable), -1)

    def noop(self, on: bool) -> None:
        """Leave out the submissions (and nothing else): what remains is our host code."""
        self._c.xm_noop(on)

    def skipped(self) -> int:
        """Submissions left out since the last question."""
        return self._c.xm_skipped()

    def trace(self, on: bool) -> None:
        self._c.xm_trace(on)

    def trace_clear(self) -> None:
        self._c.xm_trace_clear()

    def trace_report(self) -> dict[str, Any]:
        """Kernel -> count, recorded, clock, median_us, p95_us, max_us."""
        return json.loads(self._checked(self._c.xm_trace_json(), None))


@cache
def library() -> Library:
    """The launch library for this process's libsycl, built where the cache has none.

    Raises LibsyclError (none loaded, two of them, unknown version), BuildError.
    """
    found = require_loaded()
    loaded = Library(build(found))
    major, _ = loaded.built_for()
    require_loaded()  # loading ours must not have brought a second libsycl
    if major != found.major:
        raise LibsyclError(f"launch library: built for libsycl {major}, wanted {found.major} ({loaded.path})")
    return loaded
