"""What the CUDA room offers, in the order in which it is asked. Importing it loads nothing of the device."""

from __future__ import annotations

from xpu_moe.cuda.collectives.backend import AddRms, AllReduce, QkRms
from xpu_moe.cuda.route_quant.backend import Route, RouteAndQuant
from xpu_moe.ops.contract import Backend

BACKENDS: tuple[Backend, ...] = (
    Route(),
    RouteAndQuant(),
    AllReduce("one_shot"),
    AllReduce("two_shot"),
    QkRms(),
    AddRms(),
)
