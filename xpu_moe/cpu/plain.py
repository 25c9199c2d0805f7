"""What the CPU backends have in common: they read what the checkpoint's importer gives and need no workspace."""

from __future__ import annotations

from typing import Any

from xpu_moe.ops.contract import Case, Support


class Plain:
    """Nothing to prepare, no workspace."""

    def prepare(self, weights: Any, case: Case) -> Any:
        return weights

    def workspace(self, case: Case) -> int:
        return 0


class Grouped(Plain):
    """Experts one at a time, on the canonical order of bytes."""

    name = "cpu_grouped"

    def supports(self, case: Case) -> Support:
        if case.layout != "n_major":
            return Support(False, f"layout {case.layout!r}: it reads n_major only")
        return Support(True, "torch matrix products in float32, one dequantised expert at a time")
