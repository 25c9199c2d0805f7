"""What the CUDA room offers, in the order in which it is asked. Importing it loads nothing of the device."""

from __future__ import annotations

from xpu_moe.cuda.route_quant.backend import Route, RouteAndQuant
from xpu_moe.ops.contract import Backend

BACKENDS: tuple[Backend, ...] = (Route(), RouteAndQuant())
