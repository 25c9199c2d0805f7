"""`allreduce_qk_rms` under its own name; semantics and contract stand in `qk_rms.py`."""

from __future__ import annotations

from xpu_moe.ops.qk_rms import allreduce_qk_rms

__all__ = ["allreduce_qk_rms"]
