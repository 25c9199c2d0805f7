"""Latency over size as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xpu_moe import files

# Stand-alone XCCL on 4 Arc Pro B70, p50 us, as published in steveseguin/llm-optimizations.
PUBLISHED_B70 = ((6144, 15.159), (12288, 15.141), (20480, 14.614))


def check(path: Path) -> None:
    """Raise ValueError where a picture could not be written there: asked before a run, not after it."""
    files.check_picture("--plot", path, (".png", ".svg", ".pdf"))


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw the rows of a result (its JSON form) into a file; the suffix chooses the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    for key, form, label in (
        ("p50_us", "in_place", "in place, p50"),
        ("p50_us", "clone", "clone, p50"),
        ("p99_us", "in_place", "in place, p99"),
        ("graph_us", "in_place", "in place, graph"),
    ):
        points = _points(result["rows"], key, form)
        if points:
            axes.plot(*zip(*points), marker="o", markersize=3, linewidth=1, label=label)
    axes.plot(*zip(*PUBLISHED_B70), "k^", markersize=5, label="published, 4 x Arc Pro B70")
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="us, slowest rank")
    axes.set_title(f"all-reduce: {result['library']['name']} {result['library']['version']}, {result['world']} ranks")
    axes.grid(True, which="both", linewidth=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _points(rows: Sequence[Mapping[str, Any]], key: str, form: str) -> list[tuple[int, float]]:
    return [(row["bytes"], row[key]) for row in rows if row["form"] == form and row[key]]
