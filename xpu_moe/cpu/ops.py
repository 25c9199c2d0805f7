"""What the CPU offers, in the order in which it is asked."""

from __future__ import annotations

from xpu_moe.cpu.moe_fp8_block import BlockScaled
from xpu_moe.cpu.moe_fp8_tensor import TensorScaled
from xpu_moe.cpu.moe_u4 import GroupedByExpert
from xpu_moe.cpu.moe_u4_routed import RoutedGroupedByExpert
from xpu_moe.cpu.qk_rms import Apply, Partial
from xpu_moe.cpu.route_and_quant_fp8 import Pair
from xpu_moe.cpu.route_sigmoid_topk import SortedRows
from xpu_moe.ops.contract import Backend

BACKENDS: tuple[Backend, ...] = (
    GroupedByExpert(),
    RoutedGroupedByExpert(),
    BlockScaled(),
    TensorScaled(),
    SortedRows(),
    Pair(),
    Partial("cpu_rms"),
    Apply("cpu_rms"),
)
