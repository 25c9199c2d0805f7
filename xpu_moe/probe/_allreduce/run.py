"""One run from a plan to a result: environment, preflight, ranks, and what their end means."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xpu_moe import bounds, host_memory, streams
from xpu_moe.env import library as libraries
from xpu_moe.env import profiles, read, versions
from xpu_moe.env.registry import find
from xpu_moe.probe._allreduce import causes, oneccl, report
from xpu_moe.probe._allreduce.library import LOUD, algorithm
from xpu_moe.probe._allreduce.plan import Plan
from xpu_moe.probe._watch.footprint import Footprint, shared_memory_trouble
from xpu_moe.probe._watch.patience import Impatient, devices
from xpu_moe.probe._watch.signals import Stop
from xpu_moe.probe._watch.supervise import Launch, Outcome, Rank, Supervisor

_NEEDS_SHARED_MEMORY = frozenset({"nccl", "xccl", "ccl"})
_BACKENDS = {"xpu": "xccl", "cuda": "nccl", "cpu": "gloo"}
# The probe times and captures, and checks its data itself; these of the profile would forbid it.
_LEFT_OUT = {"TORCH_XCCL_NAN_CHECK": "synchronises and cannot be captured", "VLLM_LOGGING_LEVEL": "no vLLM here"}


_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FIXED = {"xccl": "xpu", "ccl": "xpu", "nccl": "cuda", "gloo": "cpu"}


class CannotStart(RuntimeError):
    """No rank can be started; the message says why."""


@dataclass(frozen=True)
class Joined:
    """The rank that torchrun gave to this process."""

    rank: int
    local_rank: int
    world: int


def joined(environ: Mapping[str, str]) -> Joined | None:
    """torchrun's rank for this process; None where torchrun did not start it. Raises ValueError for half of what it
    sets, and for values that no rank has.

    MASTER_ADDR and MASTER_PORT without a rank are a host's settings and mean nothing here. A rank without them means a
    job that others wait in: ranks of our own beside it would measure something else.
    """
    if not (environ.get("RANK") or environ.get("WORLD_SIZE")):
        return None
    missing = [name for name in _TORCHRUN if not environ.get(name)]
    if missing:
        there = [f"{name}={environ[name]}" for name in _TORCHRUN if environ.get(name)]
        raise ValueError(
            f"{', '.join(missing)}: not set, beside {', '.join(there)}; wanted all of {', '.join(_TORCHRUN)}, as "
            "torchrun sets them, or to start ranks here: unset RANK WORLD_SIZE"
        )
    rank, world, port = (read.integer(name, environ) or 0 for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    local = read.integer("LOCAL_RANK", environ) or 0
    if not 0 <= rank < world or local < 0:
        raise ValueError(f"RANK={rank}, LOCAL_RANK={local}: wanted ranks from 0 to below WORLD_SIZE={world}")
    bounds.whole("MASTER_PORT", port, 1, bounds.PORT)
    return Joined(rank, local, world)


def chosen(backend: str, device: str | None, world: int | None, stop: Stop) -> tuple[str, str, int]:
    """(device kind, backend, ranks) from what was asked for and what is in this machine, which is asked only where
    it decides: every accelerator of the kind, four ranks on a CPU. Raises CannotStart, and ValueError for a backend of
    another device, and for a device of which none is here."""
    if backend in ("nccl", "xccl") and device not in (None, _FIXED[backend]):
        raise ValueError(f"--backend {backend}: is for {_FIXED[backend]}, got --device {device}; wanted --backend auto")
    kind = device or _FIXED.get(backend)
    if kind is not None and (kind == "cpu" or world is not None):
        found = {kind: world or 0}
    else:
        try:
            found = devices(stop)
        except Impatient as error:
            raise CannotStart(f"{error}: name --device and --world") from None
    if kind is not None and kind not in found:
        raise ValueError(
            f"--device {kind}: this torch sees none ({', '.join(found)} only); see python -m xpu_moe.doctor --deep"
        )
    kind = kind or next((k for k in found if backend != "oneccl" or k != "cuda"), "cpu")
    ranks = world if world is not None else 4 if kind == "cpu" else max(1, found.get(kind, 0))
    return kind, _BACKENDS[kind] if backend == "auto" else backend, ranks


def check_memory(ranks: int, largest: int, available: int | None = None) -> None:
    """Raise ValueError where CPU ranks with messages of `largest` bytes would not fit into the host's free memory.

    A rank holds its message, the result and the check's copy of it (measured: 2.13 on a CPU).
    """
    short = host_memory.shortage(ranks, largest, 3, available)
    if short:
        raise ValueError(
            f"--world: got {ranks}, whose messages of up to {largest} bytes need {short}; take fewer ranks or "
            "--max-bytes"
        )


def run(plan: Plan, mine: Joined | None, stop: Stop) -> report.Result:
    """Do a run. Whatever happens, its processes, its folder and its shared-memory files are gone afterwards."""
    result = report.Result(plan)
    trouble = shared_memory_trouble()
    if trouble and plan.backend in _NEEDS_SHARED_MEMORY:
        result.verdict, result.says = "dead", f"no rank was started: {trouble}"
        result.causes = causes.likely(plan.backend, "start", [trouble], {})
        return result
    if trouble:
        result.notes.append(f"{trouble}; {plan.backend} does without, vLLM's message queue does not")
    footprint = Footprint()
    try:
        _run(result, plan, mine, stop, footprint)
    except CannotStart as error:
        result.verdict, result.says = ("interrupted", "") if stop.signal else ("dead", f"no rank was started: {error}")
    finally:
        removed = footprint.remove()
        if removed:
            result.notes.append(f"removed shared-memory files that the library left: {', '.join(removed)}")
    return result


def _run(
    result: report.Result, plan: Plan, mine: Joined | None, stop: Stop, footprint: Footprint,
) -> None:  # fmt: skip
    environ, result.environment = environment(plan)
    collector = _Collector(result, plan, 1 if mine else plan.world)
    outcome = _supervised(plan, mine, stop, footprint, environ, collector.event, "ranks")
    if plan.backend == "oneccl" and plan.kind == "cpu":
        ours = [
            {"name": n, "value": v, "origin": "probe"} for n, v in oneccl.CPU_ENVIRONMENT.items() if n not in environ
        ]
        result.environment = [*result.environment, *ours]
    _judge(result, plan, outcome, environ)
    loud = LOUD.get(result.library.get("name", ""), {})
    yours = [row["name"] for row in result.environment if row["name"] in loud and row["origin"] == "yours"]
    if yours:
        result.algorithm += f" (not asked for: {', '.join(yours)} is yours)"
    elif loud and result.verdict == "ok" and mine is None:
        result.algorithm = _named(result, plan, stop, footprint, {**environ, **loud})


def _supervised(
    plan: Plan, mine: Joined | None, stop: Stop, footprint: Footprint,
    environ: Mapping[str, str], on_event: Callable[[int, dict[str, Any]], None], name: str,
) -> Outcome:  # fmt: skip
    """Start the ranks of a plan in their own folder and watch them to their end."""
    folder = footprint.folder / name
    folder.mkdir()
    if not plan.address:
        plan = replace(plan, address=f"file://{folder / 'meeting'}")
    if plan.backend == "oneccl":
        try:
            launches = oneccl.launches(plan, folder, environ, stop)
        except (oneccl.BuildError, Impatient) as error:
            raise CannotStart(str(error)) from None
    else:
        plan_file = folder / "plan.json"
        plan.write(plan_file)
        numbers = [(mine.rank, mine.local_rank)] if mine else [(rank, rank) for rank in range(plan.world)]
        launches = [_launch(plan_file, rank, local, environ) for rank, local in numbers]
    others = len(launches) < plan.world
    return Supervisor(footprint, folder, stop, plan.timeout_s, plan.start_timeout_s, on_event, others).run(launches)


def _named(
    result: report.Result, plan: Plan, stop: Stop, footprint: Footprint,
    loud: Mapping[str, str],
) -> str:  # fmt: skip
    """The algorithm, from a second short run whose log says everything: such a log distorts times."""
    sizes = [step for step in plan.steps if step.form == "in_place" and step.bytes <= 1 << 20]
    short = replace(plan, steps=tuple(replace(step, rounds=1, calls=1) for step in sizes), graphs=False, address="")
    outcome = _supervised(short, None, stop, footprint, loud, lambda *_: None, "naming")
    lines = (line for rank in outcome.ranks for line in rank.log.read_text(errors="replace").splitlines())
    return algorithm(result.library["name"], lines)


def environment(plan: Plan) -> tuple[dict[str, str], list[dict[str, str]]]:
    """(the ranks' environment, what of it matters): the probe profile, your own values kept."""
    yours = read.snapshot()
    here = read.integer("LOCAL_WORLD_SIZE", yours)
    hosts = 2 if plan.address == "env://" and here != plan.world else 1
    situation = profiles.Situation(library=libraries.oneccl(), hosts=hosts)
    settings = [
        s
        for s in profiles.render("probe", plan.kind, versions.installed(), yours, situation)
        if s.name not in _LEFT_OUT
    ]
    environ = {**yours, **profiles.exports(settings), "PYTHONFAULTHANDLER": "1"}
    if plan.kind == "cpu":
        environ.setdefault("OMP_NUM_THREADS", "1")
    listed = [{"name": s.name, "value": s.value, "origin": s.origin} for s in settings]
    named = {s.name for s in settings}
    for name, value in sorted(yours.items()):
        row = find(name)
        if row is not None and name not in named and not row.secret and row.owner in _SHOWN_OWNERS:
            listed.append({"name": name, "value": value, "origin": "yours"})
    return environ, listed


_SHOWN_OWNERS = frozenset({"oneccl", "libfabric", "mpi", "level-zero", "sycl", "ur", "neo", "nccl", "cuda", "torch"})


def _launch(plan_file: Path, rank: int, local_rank: int, environ: Mapping[str, str]) -> Launch:
    def command(events: int, stack: Path) -> Sequence[str]:
        return (sys.executable, "-m", "xpu_moe.probe._allreduce.rank", str(plan_file), str(rank), str(local_rank),
                str(events), str(os.getpid()), str(stack))  # fmt: skip

    return Launch(rank, command, environ)


class _Collector:
    """Turns what ranks measured into rows, a row as soon as its last rank has reported."""

    def __init__(self, result: report.Result, plan: Plan, ranks: int) -> None:
        self._result, self._plan, self._ranks = result, plan, ranks
        self._measured: dict[int, dict[int, dict[str, Any]]] = {}

    def event(self, rank: int, event: dict[str, Any]) -> None:
        if event["event"] == "hello":
            self._result.library = self._result.library or event["library"]
        if event["event"] != "measured":
            return
        index = event["index"]
        step = self._plan.steps[index]
        of_step = self._measured.setdefault(index, {})
        of_step[rank] = event
        self._result.wrong += [{"step": step.name, "bytes": step.bytes, "form": step.form, **w} for w in event["wrong"]]
        if len(of_step) == self._ranks:
            row = report.row(step, of_step, self._plan.world)
            self._result.rows.append(row)
            streams.warn(f"allreduce: {step.name}: {row['p50_us']:.1f} us")


def _judge(result: report.Result, plan: Plan, outcome: Outcome, environ: Mapping[str, str]) -> None:
    """Turn the end of a run into its verdict, while the logs of the ranks still exist."""
    logs = {rank.number: rank.log.read_text(errors="replace").splitlines() for rank in outcome.ranks}
    result.algorithm = algorithm(result.library.get("name", ""), (line for log in logs.values() for line in log))
    result.verdict, result.says = outcome.kind, outcome.says
    if outcome.kind == "ok" and result.wrong:
        result.verdict = "wrong"
        result.says = "the sum came out wrong: the library, the driver or the link corrupts data; believe no result"
    if outcome.kind == "hang":
        _hung(result, plan, outcome, logs, environ)
    ended = any(rank.ended and not rank.done for rank in outcome.ranks)
    if outcome.kind == "dead" or (outcome.kind == "interrupted" and ended):
        _died(result, plan, outcome, logs, environ)


def _hung(result: report.Result, plan: Plan, outcome: Outcome, logs: dict[int, list[str]], environ: Any) -> None:
    waiting = [rank for rank in outcome.ranks if not rank.done]
    last = min(waiting, key=lambda rank: rank.progress)
    behind = [r for r in waiting if (r.progress, r.phase) == (last.progress, last.phase)]
    strangers = _unlike(waiting)
    stuck = strangers or behind
    step = next((s for s in plan.steps if s.name == last.step), None)
    result.stuck = {
        "phase": last.phase,
        "step": last.step,
        "bytes": step.bytes if step else None,
        "form": step.form if step else None,
        "ranks": sorted(rank.number for rank in stuck),
        "where": {rank.number: rank.where for rank in outcome.ranks},
    }
    result.log = _last_lines(logs, [rank.number for rank in stuck])
    result.causes = causes.likely(_family(plan), last.phase, result.log, environ)


_WAITING = re.compile(
    r"\b(group|distributed_c10d|c10d_logger)\.py|oneccl\.cpp:0 in (allreduce|meet)"
)  # frames of a rank that waits for others


def _unlike(ranks: Sequence[Rank]) -> list[Rank]:
    """Ranks that stand elsewhere than in the collective where most stand; none where all stand together."""
    places = [rank.where.split(" < ")[0].split(", ", 1)[-1] for rank in ranks]
    common = max(set(places), key=places.count, default="")
    odd = [rank for rank, place in zip(ranks, places) if place != common]
    if 0 < len(odd) < len(ranks) - len(odd):
        return odd
    # As many here as there: whoever is not in a collective is the one that the others wait for.
    outside = [rank for rank in odd + [r for r in ranks if r not in odd] if not _WAITING.search(rank.where)]
    return outside if 0 < len(outside) < len(ranks) else []


def _died(result: report.Result, plan: Plan, outcome: Outcome, logs: dict[int, list[str]], environ: Any) -> None:
    ended = [rank for rank in outcome.ranks if rank.ended and not rank.done]
    first = sorted(ended, key=lambda r: (r.blame, r.ended_at))
    result.dead = [
        {"rank": r.number, "how": f"ended ({r.ended})", "phase": r.phase, "step": r.step, "error": r.error}
        for r in first
    ]
    who = [rank.number for rank in first[:1]]
    result.log = _last_lines(logs, who)
    clues = [*result.log, outcome.says, *(f"{r.ended} {r.error}" for r in first[:1])]
    result.causes = causes.likely(_family(plan), first[0].phase if first else "init", clues, environ)
    if first and not outcome.says:
        result.says = f"rank {first[0].number} {first[0].ended} in {first[0].phase}"


def _family(plan: Plan) -> str:
    """The backend as the table of causes names it: oneCCL on CPU ranks has no cards to blame."""
    return "oneccl-cpu" if plan.backend == "oneccl" and plan.kind == "cpu" else plan.backend


def _last_lines(logs: dict[int, list[str]], ranks: Sequence[int]) -> list[str]:
    return [f"[rank {number}] {line}" for number in ranks for line in causes.telling(logs.get(number, []))][-12:]
