"""Stage 1: what is there. One source a file; each reads files and metadata and leaves out what it cannot read.

A source is a function `(Where) -> dict`; what it returns is merged into the facts. A source that fails leaves its part
absent and names itself in `unread`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xpu_moe.doctor.collect.environment import facts as environment
from xpu_moe.doctor.collect.gpus import facts as gpus
from xpu_moe.doctor.collect.libraries import facts as libraries
from xpu_moe.doctor.collect.model import facts as checkpoint
from xpu_moe.doctor.collect.packages import facts as packages
from xpu_moe.doctor.collect.probe import facts as probe
from xpu_moe.doctor.collect.system import facts as system
from xpu_moe.doctor.collect.where import Where
from xpu_moe.doctor.facts import SCHEMA
from xpu_moe.env import read

__all__ = ["collect"]

_SOURCES: tuple[tuple[str, str, Callable[[Where], Mapping[str, Any]]], ...] = (
    ("os", "the system", system),
    ("gpus", "the cards", gpus),
    ("libraries", "runtime libraries", libraries),
    ("python", "Python packages", packages),
    ("env", "the environment", environment),
    ("model", "the checkpoint's index", checkpoint),
    ("probe", "the peer probe's verdict", probe),
)


def collect(
    model: Path | None = None,
    plan: Mapping[str, Any] | None = None,
    deep: bool = False,
    environ: Mapping[str, str] | None = None,
    on_phase: Callable[[str], None] | None = None,
    root: Path = Path("/"),
) -> dict[str, Any]:
    """Facts of this machine, schema 1. Never raises for what it cannot read: that part is absent.

    `model` is a checkpoint folder; `plan` the launch as far as it is decided; `environ` the environment that the
    engine will get; `deep` runs a child for at most 30 s that loads torch and the collective library. `root` is where
    /proc and /sys are looked for (tests).
    """
    tell = on_phase or (lambda text: None)
    where = Where(root, dict(read.snapshot() if environ is None else environ), model)
    found: dict[str, Any] = {"schema": SCHEMA}
    unread: list[str] = []
    for key, says, source in _SOURCES:
        tell(f"reading {says}")
        try:
            found.update(source(where))
        except Exception as error:  # a source may fail in any way; the others must still speak
            unread.append(f"{key}: {type(error).__name__}")
    if deep:
        from xpu_moe.doctor.collect.deeper import merge

        tell("loading torch and the collective library in a child (at most 30 s)")
        merge(found, where)
    if plan is not None:
        found["plan"] = dict(plan)
    if unread:
        found["unread"] = unread
    return found
