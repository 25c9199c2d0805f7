"""What Intel GPUs are offered, in the order in which it is asked: the ESIMD kernels, then their SIMT twins."""

from __future__ import annotations

from xpu_moe.esimd.runtime import session
from xpu_moe.esimd.runtime.moe import Moe, RoutedMoe
from xpu_moe.esimd.runtime.room import ESIMD, TWINS
from xpu_moe.esimd.runtime.small import Partial, Rms, Route
from xpu_moe.ops.contract import Backend

BACKENDS: tuple[Backend, ...] = tuple(
    kind(room, session.for_xpu) for kind in (Moe, RoutedMoe, Route, Partial, Rms) for room in (ESIMD, TWINS)
)
