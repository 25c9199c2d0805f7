"""Where the facts make a registry caution milder, harsher or void: a table of (variable, condition -> severity)."""

from __future__ import annotations

from collections.abc import Callable

from xpu_moe.doctor.finding import Severity
from xpu_moe.doctor.rules.context import Context

Judged = Severity | None


def moderated(context: Context, name: str, taken: str, level: Judged) -> Judged:
    """The severity of a caution, conflict or need on `name`; None = silent."""
    for names, judge in _TABLE:
        if name in names or any(n.endswith("*") and name.startswith(n[:-1]) for n in names):
            return judge(context, taken, level)
    return level


def _all_reduce(context: Context, taken: str, level: Judged) -> Judged:
    """oneCCL 2022.0 and 2022.1 hang on a B60 with their default: ring is the cure there."""
    b60 = any(card and card.key == "b60" for card in map(context.kind, context.cards))
    cure = b60 and context.has("oneccl", ">=2022.0,<2022.2") and taken.split(":")[0] == "ring"
    topo = all(part.split(":")[0].strip() == "topo" for part in taken.split(";"))
    return None if cure or topo else "warn"


def _collective(context: Context, taken: str, level: Judged) -> Judged:
    return None if all(part.split(":")[0].strip() == "topo" for part in taken.split(";")) else level


def _sycl_kernels(context: Context, taken: str, level: Judged) -> Judged:
    """The last resort of a host without peer access."""
    return "info" if context.peers is False else level


def _exchange(context: Context, taken: str, level: Judged) -> Judged:
    """Overridden only where pidfd fails; send/recv of a pipeline does not take it at all."""
    return "info" if context.pidfd and (context.plan.pp or 1) == 1 else level


def _fork(context: Context, taken: str, level: Judged) -> Judged:
    return "error" if context.xpu else "info"


def _nvlink(context: Context, taken: str, level: Judged) -> Judged:
    cards = [context.kind(gpu) for gpu in context.cards]
    return "warn" if cards and all(card and card.nvlink for card in cards) and context.several else "info"


def _left_over(context: Context, taken: str, level: Judged) -> Judged:
    return "warn"


def _note(context: Context, taken: str, level: Judged) -> Judged:
    return "info"


def _judged_elsewhere(context: Context, taken: str, level: Judged) -> Judged:
    return None


_TABLE: tuple[tuple[tuple[str, ...], Callable[[Context, str, Judged], Judged]], ...] = (
    (("CCL_ALLREDUCE",), _all_reduce),
    (("CCL_ALLGATHERV", "CCL_REDUCE_SCATTER", "CCL_BCAST", "CCL_REDUCE", "CCL_ALLTOALL", "CCL_ALLTOALLV"), _collective),
    (("CCL_ENABLE_SYCL_KERNELS",), _sycl_kernels),
    (("CCL_ZE_IPC_EXCHANGE",), _exchange),
    (("VLLM_WORKER_MULTIPROC_METHOD",), _fork),
    (("NCCL_P2P_DISABLE",), _nvlink),
    (("I_MPI_*", "PMI_*", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"), _left_over),
    (("CCL_KVS_IP_PORT",), _note),
    (("ONEAPI_DEVICE_SELECTOR",), _judged_elsewhere),
)
