"""What the backends of Intel GPUs have in common: a room (ESIMD or SIMT twins), the session of a device, `supports`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch

from xpu_moe.esimd.kernels import launch as shapes
from xpu_moe.esimd.runtime.build import BuildError
from xpu_moe.esimd.runtime.library import RuntimeFailure
from xpu_moe.esimd.runtime.libsycl import LibsyclError
from xpu_moe.esimd.runtime.room import KernelMissing, Room
from xpu_moe.esimd.runtime.session import Session
from xpu_moe.esimd.runtime.spirv import SpirvError
from xpu_moe.esimd.runtime.workspace import Workspace
from xpu_moe.ops.contract import Case, Support
from xpu_moe.toolenv import ToolEnvironmentError

# What can go wrong between a case that the kernels serve and a kernel that is loaded: a refusal with its reason.
_FAILURES = (LibsyclError, BuildError, RuntimeFailure, KernelMissing, SpirvError, ToolEnvironmentError)
FLOATS = ("float32", "float16", "bfloat16")
SessionOf = Callable[[int], Session]


@cache
def workspace_for(device: torch.device) -> Workspace:
    """The workspace of calls that bring none: one a device, grow-only, never freed."""
    return Workspace(device)


class Base:
    """What the five have in common: a room, the session of a device, `supports` in two steps."""

    op = ""

    def __init__(self, room: Room, session_of: SessionOf) -> None:
        self.name, self.room, self._session_of = room.name, room, session_of

    def supports(self, case: Case) -> Support:
        reason = self.refusal(case) or _device_refusal(self.room, self._session_of, self.module(case))
        return Support(False, reason) if reason else Support(True, self.room.why)

    def refusal(self, case: Case) -> str | None:
        """Why the kernels cannot serve the case, whatever the device."""
        raise NotImplementedError

    def module(self, case: Case) -> str:
        """The stem of the SPIR-V file that serves the case."""
        raise NotImplementedError

    def prepare(self, weights: Any, case: Case) -> Any:
        """The kernels read the canonical layout, which is also what the prefill GEMM reads: nothing to do."""
        return weights

    def workspace(self, case: Case) -> int:
        return 0

    def _session(self, tensor: torch.Tensor) -> Session:
        return self._session_of(tensor.device.index or 0)


@lru_cache(maxsize=64)
def _device_refusal(room: Room, session_of: SessionOf, module: str, index: int = 0) -> str | None:
    """Why a device cannot run a room's module; asks once (builds the launch library where it is not cached)."""
    missing = room.missing(module)
    if missing:
        return missing
    try:
        session = session_of(index)
        lacking = room.lacking(session.device)
        if lacking is None:
            session.load(room, module)
        return lacking
    except _FAILURES as error:
        return str(error)


def token_range(case: Case) -> str | None:
    if case.tokens > shapes.MAX_TOKENS:
        return f"{case.tokens} tokens, wanted at most {shapes.MAX_TOKENS}: a decode kernel"
    return None


@cache
def nothing(device: torch.device) -> torch.Tensor:
    """Stands for an optional tensor that is not given."""
    return torch.empty(0, dtype=torch.float32, device=device)
