"""What this room offers every accelerator, after the accelerator's own room."""

from __future__ import annotations

from xpu_moe.ops.contract import Backend
from xpu_moe.triton.grouped import U4, Fp8Block, Fp8Tensor
from xpu_moe.triton.rms import Apply, Partial

BACKENDS: tuple[Backend, ...] = (U4(), Fp8Block(), Fp8Tensor(), Partial(), Apply())
