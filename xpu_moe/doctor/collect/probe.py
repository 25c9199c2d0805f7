"""The verdict that `python -m xpu_moe.probe p2p` left in the user's cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xpu_moe import verdict
from xpu_moe.doctor.collect.where import Where


def facts(where: Where) -> dict[str, Any]:
    """`peer_access` and `probe.p2p` (`ok` or `broken`), when the probe has run with these cards and this driver."""
    if where.root != Path("/"):
        return {}
    for kind in ("xpu", "cuda"):
        found = verdict.load(kind)
        if found is not None and found.tested:
            return {"peer_access": _matrix(found), "probe": {"p2p": "ok" if found.ok else "broken"}}
    return {}


def _matrix(found: verdict.Verdict) -> list[list[bool | None]]:
    """Row a, column b: a reaches b and the data came out whole; pairs that were not tested are unknown."""
    size = max(found.tested) + 1
    matrix: list[list[bool | None]] = [[True if a == b else None for b in range(size)] for a in range(size)]
    for pair in found.pairs:
        if pair.source < size and pair.target < size:
            matrix[pair.source][pair.target] = pair.reachable and pair.intact is not False
    return matrix
