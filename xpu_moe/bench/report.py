"""A benchmark's rows: as a table, as one JSON object, as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xpu_moe import streams
from xpu_moe.bench.timing import Timing

SCHEMA = "xpu_moe.bench/1"


@dataclass(frozen=True)
class Row:
    """One measured case.

    `moved` counts the fewest bytes the case must move (inputs once, outputs once), `floor_us` their time at the
    device's ceiling (0 = unknown). `rivals` maps a rival's name to its us in this run, or to a sentence where it could
    not run ("not installed: …"). `errors` maps what was compared ("ids", "codes", "rel") to the deviation found.
    """

    suite: str
    name: str
    shape: str
    timing: Timing
    moved: float = 0.0
    floor_us: float = 0.0
    rivals: Mapping[str, float | str] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    backend: str = ""
    reason: str = ""
    extra: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def tb_per_s(self) -> float:
        return self.moved / self.timing.us / 1e6 if self.timing.us else 0.0

    @property
    def times_floor(self) -> float:
        return self.timing.us / self.floor_us if self.floor_us else 0.0

    def times_faster(self) -> dict[str, float]:
        """Rival's name -> its time over ours (above 1: ours is faster)."""
        return {name: us / self.timing.us for name, us in self.rivals.items() if not isinstance(us, str)}

    def as_json(self) -> dict[str, Any]:
        """Everything, derived figures included."""
        return {
            **asdict(self),
            "tb_per_s": self.tb_per_s,
            "times_floor": self.times_floor,
            "times_faster": self.times_faster(),
        }


COLUMNS = ("case", "shape", "us", "p10-p90", "MB", "TB/s", "x floor", "rival us", "x rival", "error", "backend")


def cells(row: Row) -> tuple[str, ...]:
    """The table's cells of one row, in the order of COLUMNS."""
    faster = row.times_faster()
    rivals = [f"{n} {us}" if isinstance(us, str) else f"{n} {us:.2f}" for n, us in row.rivals.items()]
    return (
        row.name,
        row.shape,
        f"{row.timing.us:.2f}",
        f"{row.timing.low:.2f}-{row.timing.high:.2f}",
        f"{row.moved / 1e6:.3g}" if row.moved else "-",
        f"{row.tb_per_s:.3g}" if row.moved else "-",
        f"{row.times_floor:.2f}" if row.floor_us else "-",
        "; ".join(rivals) or "-",
        "; ".join(f"{value:.2f}" for value in faster.values()) or "-",
        " ".join(f"{name} {value:.3g}" for name, value in row.errors.items()) or "-",
        row.backend,
    )


def table(rows: Sequence[Row], columns: Sequence[str] = COLUMNS) -> str:
    """A plain-text table, numbers to the right; readable in a log as well as on a terminal."""
    lines = [tuple(columns), *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    left = {"case", "shape", "rival us", "error", "backend"}

    def text(line: Sequence[str]) -> str:
        aligned = (c.ljust(w) if n in left else c.rjust(w) for c, w, n in zip(line, widths, columns))
        return "  ".join(aligned).rstrip()

    return "\n".join([text(lines[0]), "-" * len(text(lines[0])), *(text(line) for line in lines[1:])])


def reasons(rows: Sequence[Row]) -> str:
    """Each backend that was taken, with its reason, once."""
    seen = dict.fromkeys((row.backend, row.reason) for row in rows if row.reason)
    return "\n".join(f"{backend}: {reason}" for backend, reason in seen)


def document(rows: Sequence[Row], about: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object: {schema, …about, rows}."""
    return {"schema": SCHEMA, **about, "rows": [row.as_json() for row in rows]}


def say(text: str, data: Mapping[str, Any], as_json: bool) -> int:
    """`text` on stdout; with `as_json` it goes to stderr, and `data` to stdout. `streams.emit`'s code."""
    if not as_json:
        return streams.emit("bench", text)
    streams.warn(text)
    return streams.emit("bench", json.dumps(data))


def plot(rows: Sequence[Row], path: Path, title: str) -> int:
    """Bars of every case with its rivals and its floor, as a PNG: 0, or LOST where it cannot be written.

    RuntimeError where matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError:
        raise RuntimeError("--plot needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rivals = list(dict.fromkeys(n for row in rows for n, us in row.rivals.items() if not isinstance(us, str)))
    series: dict[str, list[float]] = {"xpu_moe": [row.timing.us for row in rows]}
    for name in rivals:
        found = [row.rivals.get(name) for row in rows]
        series[name] = [float("nan") if isinstance(us, str) or us is None else us for us in found]
    height = 0.8 / len(series)
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.25 * len(rows) * len(series)))
    for index, (name, values) in enumerate(series.items()):
        axes.barh([i + index * height for i in range(len(rows))], values, height=height, label=name)
    for i, row in enumerate(rows):
        if row.floor_us:
            axes.plot([row.floor_us] * 2, [i - height / 2, i + 0.8 - height / 2], color="black", linewidth=1.5)
    axes.set_yticks([i + 0.4 - height / 2 for i in range(len(rows))], [f"{row.name} {row.shape}" for row in rows])
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("us a call (bar: median; black line: byte floor)")
    axes.set_title(title)
    axes.legend()
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        streams.warn(f"bench: --plot: {str(path)!r} could not be written: {error.strerror or error}")
        return streams.LOST
    finally:
        pyplot.close(figure)
    streams.warn(f"bench: plot in {path}")
    return 0
