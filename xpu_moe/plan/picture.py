"""One card's memory as a bar of text, and as a PNG."""

from __future__ import annotations

from pathlib import Path

from xpu_moe.plan.memory import MemoryPlan
from xpu_moe.plan.sizes import gib

_SIGNS = {
    "experts": "E", "other weights": "W", "KV cache": "K", "activations": "a", "graphs": "g", "reserve": "r",
    "free": ".",
}  # fmt: skip
_COLOURS = {
    "experts": "#4c6ef5", "other weights": "#91a7ff", "KV cache": "#37b24d", "activations": "#f59f00",
    "graphs": "#e8590c", "reserve": "#868e96", "free": "#f1f3f5",
}  # fmt: skip


def bar(plan: MemoryPlan, width: int = 64) -> list[str]:
    """A bar of `width` signs and a legend. Every part that is there gets at least one sign."""
    whole = max(plan.card_bytes, plan.used)
    shown = [(name, count) for name, count in plan.parts() if count > 0]
    signs = {name: max(1, round(count / whole * width)) for name, count in shown}
    while sum(signs.values()) > width:
        largest = max(signs, key=lambda name: signs[name])
        signs[largest] -= 1
    line = "".join(_SIGNS[name] * signs[name] for name, _ in shown)
    over = f"  over by {gib(plan.used - plan.card_bytes)}" if plan.used > plan.card_bytes else ""
    legend = [f"  {_SIGNS[name]} {name:14} {gib(count):>10}" for name, count in shown]
    return [f"[{line}] {gib(plan.card_bytes)} of one {plan.card}{over}", *legend]


def png(plan: MemoryPlan, file: Path) -> None:
    """The same as a stacked bar. Raises ImportError with what to install where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(9, 2.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    left = 0.0
    for name, count in plan.parts():
        if count > 0:
            value = count / 2**30
            axes.barh(0, value, left=left, color=_COLOURS[name], edgecolor="white", label=f"{name} {value:.2f} GiB")
            left += value
    axes.axvline(plan.card_bytes / 2**30, color="black", linewidth=1)
    axes.set_yticks([])
    axes.set_xlabel("GiB of one card")
    axes.set_title(f"{plan.card}: {plan.why}", fontsize=9)
    axes.legend(ncols=4, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.35), frameon=False)
    figure.savefig(file, dpi=150)
