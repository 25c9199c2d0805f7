"""Peer access: forced against the hardware, switched off without need, missing without its cure."""

from __future__ import annotations

from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.text import is_number
from xpu_moe.env.parse import interpret

_NAME = "CCL_TOPO_P2P_ACCESS"
_SIMPLE = ("CCL_SYCL_ALLREDUCE_SIMPLE_THRESHOLD", "CCL_SYCL_ALLGATHERV_SIMPLE_THRESHOLD",
           "CCL_SYCL_REDUCE_SCATTER_SIMPLE_THRESHOLD")  # fmt: skip


def setting(context: Context) -> str | None:
    """What oneCCL takes CCL_TOPO_P2P_ACCESS for: "1", "0", another number, None where unset or unreadable."""
    value = context.facts.value(_NAME)
    return None if value is None else interpret(_NAME, value).taken


def workaround(context: Context) -> bool:
    """Is a cure for missing peers set: host memory, plain kernels for all sizes, or no SYCL kernels?"""
    env = context.facts.env or {}
    return setting(context) == "0" or env.get("CCL_ENABLE_SYCL_KERNELS") == "0" or all(name in env for name in _SIMPLE)


def _multi(context: Context) -> bool:
    return context.xpu and context.several


def _forced(context: Context) -> bool:
    return (
        _multi(context) and setting(context) == "1" and (context.peers is False or context.facts.probe_p2p == "broken")
    )


def _off(context: Context) -> bool:
    return _multi(context) and setting(context) == "0" and context.peers is True


def _odd(context: Context) -> dict[str, Any] | None:
    taken = setting(context)
    return {"taken": taken} if _multi(context) and taken not in (None, "0", "1") else None


def _none(context: Context) -> dict[str, Any] | None:
    if not _multi(context) or context.peers is not False or setting(context) == "1" or workaround(context):
        return None
    some = "only some pairs of cards reach" if context.any_peer else "no card reaches"
    severity = "warn" if context.facts.env is not None else "info"  # what is set is not known
    return {"severity": severity, "some": some, "says": "within pairs only" if context.any_peer else "nowhere"}


def _bare(context: Context) -> bool:
    """Peers refused, host memory chosen, but newer oneCCL lets its SYCL kernels in unless the trio is set."""
    env = context.facts.env or {}
    return (
        _multi(context)
        and context.peers is False
        and setting(context) == "0"
        and env.get("CCL_ENABLE_SYCL_KERNELS") != "0"
        and not all(name in env for name in _SIMPLE)
        and context.has("oneccl", ">2021.14")
    )


def _small(context: Context) -> list[dict[str, Any]]:
    """Thresholds under the largest message: above them the kernel that maps peers is taken again."""
    shapes, tokens = context.shapes, context.plan.max_num_batched_tokens
    if not _multi(context) or context.peers is not False or shapes is None or tokens is None:
        return []
    need = tokens * shapes.hidden_size * 2
    hits = []
    for name in _SIMPLE:
        value = context.facts.value(name)
        if value and is_number(value) and int(value) < need:
            hits.append({"name": name, "value": value, "need": need})
    return hits


RULE = Rule(
    "peers forced, switched off or missing",
    "oneCCL does not check what CCL_TOPO_P2P_ACCESS claims; a host that refuses peer access needs the no-p2p profile.",
    (
        Row(
            "peers.forced", "error", "env.CCL_TOPO_P2P_ACCESS",
            "peer access is forced and the cards refuse it",
            "oneCCL maps other cards' memory without asking: it dies in zeMemOpenIpcHandle or corrupts data.",
            "unset CCL_TOPO_P2P_ACCESS; --profile no-p2p (beside another: --profile b70-tp4-latency+no-p2p)",
            "intel/compute-runtime#935", _forced,
        ),
        Row(
            "peers.off", "warn", "env.CCL_TOPO_P2P_ACCESS",
            "peer access is switched off although every card reaches every other",
            "Through host memory it costs 9 to 15 % (60.1 against 65.75 tok/s); in one stack it stalled in warm-up.",
            "unset CCL_TOPO_P2P_ACCESS",
            "B70 field notes 9; B70 u4 decode note", _off,
        ),
        Row(
            "peers.odd", "warn", "env.CCL_TOPO_P2P_ACCESS",
            "{taken} is neither 0 nor 1",
            "oneCCL reads a number: 1 forces peers, 0 goes through host memory, other values are untested.",
            "unset CCL_TOPO_P2P_ACCESS",
            "oneCCL source", _odd,
        ),
        Row(
            "peers.missing", "warn", "peer_access",
            "{some} another's memory, and nothing is set for it",
            "Newer oneCCL lets its kernels in without asking and dies in zeMemOpenIpcHandle (peers: {says}).",
            "scripts/serve_minimax.sh --profile no-p2p (beside another: --profile b70-tp4-latency+no-p2p)",
            "intel/llm-scaler#486, #594; intel/compute-runtime#935", _none,
        ),
        Row(
            "peers.no-threshold", "info", "peer_access",
            "host memory is chosen, the SIMPLE_THRESHOLD trio is not set",
            "A library that knows the names needs them for messages of every size.",
            "scripts/serve_minimax.sh --profile no-p2p (beside another: --profile b70-tp4-latency+no-p2p)",
            "intel/llm-scaler#594", _bare,
        ),
        Row(
            "peers.threshold-small", "warn", "env.{name}",
            "{name}={value} is below the largest message",
            "max_num_batched_tokens x hidden_size x 2 = {need} bytes: larger ones take the kernel that maps peers.",
            "export {name}=4294967296",
            "intel/llm-scaler#594", _small,
        ),
    ),
)  # fmt: skip
