"""Whether graphs may hold all-reduces here: the verdict of a run, kept for whoever decides about graphs."""

from __future__ import annotations

from datetime import UTC, datetime

from xpu_moe import cache, verdict
from xpu_moe.probe._allreduce.plan import PER_TOKEN
from xpu_moe.probe._allreduce.report import Result


def replay(result: Result) -> str:
    """Keep the replay verdict of a run; says what was kept, "" where the run has none to give."""
    found = judge(result)
    if found is None:
        return ""
    ok, says = found
    kind = result.plan.kind
    try:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        verdict.save_replay(verdict.Replay(ok, says, result.plan.world, verdict.replay_ground(kind), now))
    except (cache.UnsafeCache, OSError) as error:
        return f"graph replay {'passed' if ok else 'failed'}, but that could not be kept: {error}"
    return f"graph replay {'passed' if ok else 'failed'} with {result.plan.world} ranks ({says}); kept"


def judge(result: Result) -> tuple[bool, str] | None:
    """(passed, why): None for a run that did not get so far, left graphs out, or left out a decode step's sizes."""
    plan = result.plan
    sizes = {step.bytes for step in plan.steps}
    if plan.kind == "cpu" or plan.backend == "oneccl" or not plan.graphs or plan.world < 2:
        return None
    if not {size for size, _ in PER_TOKEN} <= sizes:
        return None
    if result.stuck is not None:
        return (False, "a hang in it") if result.stuck["phase"] == "graph" else None
    if result.dead:
        return (False, "a rank died in it") if result.dead[0]["phase"] == "graph" else None
    if result.verdict not in ("ok", "wrong") or len(result.rows) < len(plan.steps):
        return None
    if result.wrong:
        return False, "wrong data"
    missing = sorted({row["graph"] for row in result.rows if row["graph_us"] is None})
    return (False, "; ".join(missing)) if missing else (True, "every size, with changed inputs, and eager afterwards")
