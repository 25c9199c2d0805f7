"""`--deep`: a child loads torch and the collective library, and asks each card for one exact product.

The child may crash, hang or print; it has 30 s, its own process group, and only its last line counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

from xpu_moe.doctor.collect.private import private
from xpu_moe.doctor.collect.where import Where
from xpu_moe.doctor.facts import numbered
from xpu_moe.doctor.reading import gpus

LIMIT_S = 30


def merge(found: dict[str, Any], where: Where) -> None:
    """Run the child and merge what it saw; `deep` in the facts says how it ended."""
    answer, ended = _ask(where)
    found["deep"] = ended
    if answer.get("failed"):
        found["deep_failed"] = {part: private(error) for part, error in answer["failed"].items()}
    for library in answer.get("libraries") or []:
        rows = [r for r in found.get("libraries", []) if r["name"].split(".so")[0] != library["name"].split(".so")[0]]
        found["libraries"] = rows
    found.setdefault("libraries", []).extend(answer.get("libraries") or [])
    if answer.get("peer_access"):
        found["peer_access"] = answer["peer_access"]
    cards = numbered(gpus(found.get("gpus")) or (), answer.get("kind"))
    for card, exact in zip(cards, answer.get("gemm") or [], strict=False):
        found["gpus"][card.place]["gemm_exact"] = exact
    if not found["libraries"]:
        del found["libraries"]


def _ask(where: Where) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-m", "xpu_moe.doctor.deep"]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=dict(where.environ), start_new_session=True, errors="replace",
    )  # fmt: skip
    try:
        output, _ = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        _end(child)
        return {}, f"no answer in {LIMIT_S} s"
    except BaseException:  # Ctrl-C does not reach a session of its own, and a child that hangs would stay
        _end(child)
        raise
    lines = [line for line in output.splitlines() if line.startswith("{")]
    try:
        return (json.loads(lines[-1]), "done") if lines else ({}, f"ended with code {child.returncode}")
    except ValueError:
        return {}, "unreadable answer"


def _end(child: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
