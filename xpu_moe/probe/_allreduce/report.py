"""A run's result: the object, its table, and what it comes to in a decode step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xpu_moe.probe._allreduce.plan import CALLS_PER_TOKEN, PER_TOKEN, Plan, Step

SCHEMA = 1
EXIT = {"ok": 0, "hang": 3, "dead": 4, "wrong": 5}


@dataclass
class Result:
    """Everything that is said of a run; `rows` is filled as the ranks report."""

    plan: Plan
    library: Mapping[str, str] = field(default_factory=dict)
    algorithm: str = ""
    environment: Sequence[Mapping[str, str]] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    verdict: str = "ok"
    says: str = ""
    stuck: dict[str, Any] | None = None
    dead: list[dict[str, Any]] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "backend": self.plan.backend,
            "device": self.plan.kind,
            "library": {"name": "", "path": "", "version": "", **self.library},
            "algorithm": self.algorithm,
            "world": self.plan.world,
            "rows": self.rows,
            "projection": projection(self.rows) if self.plan.world > 1 else None,
            "verdict": self.verdict,
            "says": self.says,
            "stuck": self.stuck,
            "dead": self.dead,
            "wrong": self.wrong,
            "causes": self.causes,
            "log": self.log,
            "environment": list(self.environment),
            "notes": self.notes,
            "seconds": round(self.seconds, 1),
        }


def row(step: Step, measured: Mapping[int, Mapping[str, Any]], world: int) -> dict[str, Any]:
    """One step from what its ranks measured (rank -> fields): a round counts as its slowest rank's."""
    slowest = sorted(max(column) for column in zip(*(fields["times_us"] for fields in measured.values())))
    p50, p99 = quantile(slowest, 0.5), quantile(slowest, 0.99)
    graphs = [fields["graph_us"] for fields in measured.values() if fields["graph_us"] is not None]
    said = sorted({fields["graph"] for fields in measured.values()})
    bandwidth = step.bytes / p50 / 1e3 if p50 else 0.0
    return {
        "bytes": step.bytes,
        "dtype": step.dtype,
        "form": step.form,
        "p50_us": round(p50, 2),
        "p99_us": round(p99, 2),
        "graph_us": round(max(graphs), 2) if graphs else None,
        "graph": "; ".join(said),
        "algorithm_gb_per_s": round(bandwidth, 3),
        "bus_gb_per_s": round(bandwidth * 2 * (world - 1) / world, 3),
        "rounds": len(slowest),
        "calls": step.calls,
        "ok": not any(fields["wrong"] for fields in measured.values()),
    }


def quantile(ordered: Sequence[float], q: float) -> float:
    """The nearest-rank quantile of ordered values."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


def projection(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the all-reduces of one decoded token come to; None where one of its sizes was not measured.

    The in-place form, replayed as a graph where that was measured. A floor: inside a model a call costs more.
    """
    best = {}
    for found in rows:
        if found["form"] == "in_place":
            best[found["bytes"]] = found["graph_us"] if found["graph_us"] is not None else found["p50_us"]
    if any(size not in best for size, _ in PER_TOKEN):
        return None
    us = sum(best[size] * count for size, count in PER_TOKEN)
    return {
        "calls": CALLS_PER_TOKEN,
        "ms_per_token": round(us / 1e3, 3),
        "tokens_per_s_ceiling": round(1e6 / us, 1) if us else None,
        "parts": [{"bytes": size, "calls": count, "us": round(best[size], 2)} for size, count in PER_TOKEN],
    }


def text(result: Result) -> str:
    """The report for a terminal."""
    lines = [
        f"all-reduce, {result.plan.backend} on {result.plan.world} {result.plan.kind} ranks",
        f"library    {result.library.get('name', '?')} {result.library.get('version', '?')}"
        f"  {result.library.get('path', '')}",
        f"algorithm  {result.algorithm}",
    ]
    for setting in result.environment:
        lines.append(f"env        {setting['name']}={setting['value']} ({setting['origin']})")
    lines += ["", *_table(result.rows), ""]
    ahead = projection(result.rows)
    if ahead is not None and result.plan.world > 1:
        parts = " + ".join(f"{p['calls']} x {p['us']} us ({p['bytes']} B)" for p in ahead["parts"])
        lines.append(
            f"a decoded token makes {ahead['calls']} of them: {parts} = {ahead['ms_per_token']} ms, which alone allows "
            f"{ahead['tokens_per_s_ceiling']} tok/s (a floor: inside a model a call costs more)"
        )
    lines += [f"note       {note}" for note in result.notes]
    lines += [f"verdict    {result.verdict}{': ' + result.says if result.says else ''}", *_trouble(result)]
    return "\n".join(lines)


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"{'bytes':>11} {'dtype':>9} {'form':>9} {'p50 us':>10} {'p99 us':>10} {'graph us':>9} {'GB/s':>8}  data"]
    for r in rows:
        graph = f"{r['graph_us']:9.2f}" if r["graph_us"] is not None else f"{'–':>9}"
        lines.append(
            f"{r['bytes']:>11} {r['dtype']:>9} {r['form'].replace('_', ' '):>9} {r['p50_us']:>10.2f} "
            f"{r['p99_us']:>10.2f} {graph} {r['algorithm_gb_per_s']:>8.3f}  {'exact' if r['ok'] else 'WRONG'}"
        )
    return lines


def _trouble(result: Result) -> list[str]:
    lines = []
    if result.stuck is not None:
        s = result.stuck
        lines.append(f"stuck in {s['phase']}{' of ' + s['step'] if s['step'] else ''}: ranks {s['ranks']}")
        lines += [f"  rank {number}: {where}" for number, where in s["where"].items()]
    for d in result.dead:
        lines.append(f"rank {d['rank']} {d['how']} in {d['phase']}{' of ' + d['step'] if d['step'] else ''}")
        lines += [f"  {d['error']}"] if d["error"] else []
    for w in result.wrong[:8]:
        lines.append(
            f"wrong at {w['step']} ({w['how']}), seen by rank {w['rank']}: {w['count']} elements, the first at "
            f"{w['first']}: got {w['got']:g}, wanted {w['wanted']}"
        )
    if result.log:
        lines += ["last lines of the library's log:", *(f"  {line}" for line in result.log)]
    if result.causes:
        lines += ["likely causes, in this order:", *(f"  {n}. {c}" for n, c in enumerate(result.causes, 1))]
    return lines
