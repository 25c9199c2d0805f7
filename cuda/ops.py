"""What the CUDA room offers, in the order in which it is asked. Importing it loads nothing of the device."""

from __future__ import annotations

from xpu_moe.cuda.collectives.backend import AddRms, AllReduce, QkRms
from xpu_moe.cuda.decode.backends import MoeFp8Block, MoeU4
from xpu_moe.cuda.flashinfer import Fp8Block, Fp8Tensor
from xpu_moe.cuda.route_quant.backend import Route, RouteAndQuant
from xpu_moe.ops.contract import Backend

BACKENDS: tuple[Backend, ...] = (
    Route(),
    RouteAndQuant(),
    MoeU4(),
    MoeFp8Block(),
    Fp8Block(),
    Fp8Tensor(),
    AllReduce("one_shot"),
    AllReduce("two_shot"),
    QkRms(),
    AddRms(),
)
