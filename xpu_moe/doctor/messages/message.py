"""One row of the message table, and what rows share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["cause", "symptom", "note"]
Severity = Literal["error", "warn", "info"]


@dataclass(frozen=True)
class Message:
    code: str
    keys: tuple[str, ...]
    pattern: re.Pattern[str]
    kind: Kind
    severity: Severity
    about: str
    title: str
    why: str
    fix: str
    source: str
    blames: tuple[tuple[str, str | None], ...] = ()
    where: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    asked: tuple[tuple[str, str], ...] = ()


def row(
    code: str, keys: tuple[str, ...], kind: Kind, severity: Severity, about: str, pattern: str, title: str, why: str,
    fix: str, source: str, blames: tuple[tuple[str, str | None], ...] = (), where: tuple[str, ...] = (),
    also: tuple[str, ...] = (), asked: tuple[tuple[str, str], ...] = (),
) -> Message:  # fmt: skip
    return Message(
        f"log.{code}", keys, re.compile(pattern), kind, severity, about, title, why, fix, source, blames, where, also,
        asked,
    )  # fmt: skip


# settings that stop collectives, in the order in which they deserve the blame (ladder of the B70 note, oneCCL source)
STOPPERS: tuple[tuple[str, str | None], ...] = (
    ("CCL_TOPO_P2P_ACCESS", "0"), ("CCL_ATL_TRANSPORT", "mpi"), ("CCL_WORKER_COUNT", None), ("CCL_ALLREDUCE", None),
    ("CCL_ZE_CACHE_OPEN_IPC_HANDLES", None), ("CCL_PROCESS_LAUNCHER", None), ("CCL_LOCAL_SIZE", None),
    ("CCL_TOPO_FABRIC_VERTEX_CONNECTION_CHECK", "0"), ("CCL_ZE_IPC_EXCHANGE", None), ("CCL_TOPO_P2P_ACCESS", None),
)  # fmt: skip

# arguments that stalled workers on four B70 (B70 field notes, 9)
STALLERS: tuple[tuple[str, str], ...] = (
    ("ngram", "plan.speculative_method"), ("'enable_expert_parallel': True", "plan.enable_expert_parallel"),
    ("profiler", "plan.profiler"), ("'kv_cache_dtype': 'fp8", "plan.kv_cache_dtype"),
)  # fmt: skip
