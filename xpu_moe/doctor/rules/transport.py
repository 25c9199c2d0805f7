"""Transport, provider, interface: what a rank needs to find the others."""

from __future__ import annotations

import re
from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.text import is_number, shown

# providers of oneCCL's bundled libfabric, and those that only sit on another one (libfabric documentation)
_BUNDLED = frozenset({"tcp", "sockets", "psm3", "psm2", "verbs", "mlx", "efa", "net"})
_ON_TOP = frozenset({"ofi_rxm", "ofi_rxd", "rxm", "rxd", "ofi_mrail", "ofi_hook_debug"})
_MPI_LEFT = ("PMI_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "I_MPI_")  # a rank says more than a tuning knob
_FABRIC = frozenset({"verbs", "psm2", "efa", "mlx", "net"})  # want their own adapter; psm3 takes any network card


def _multi(context: Context) -> bool:
    return context.xpu and context.several


def _provider(context: Context) -> dict[str, Any] | None:
    value = context.facts.value("FI_PROVIDER")
    if not context.xpu or value is None or value.startswith("^"):
        return None
    names = [part for part in re.split(r"[,;\s]+", value.lower()) if part]
    if any(name in _BUNDLED for name in names):
        return None
    alone = bool(names) and all(name in _ON_TOP for name in names)
    says = "It works only on top of another provider." if alone else "oneCCL's bundled libfabric has no such provider."
    return {"value": shown(value) or "(empty)", "says": says}


def _fabric(context: Context) -> dict[str, Any] | None:
    """Only providers that want a fabric adapter of their own."""
    value = (context.facts.value("FI_PROVIDER") or "").lower()
    names = [part for part in re.split(r"[,;\s]+", value) if part and part not in _ON_TOP]
    return {"value": shown(value)} if _multi(context) and names and set(names) <= _FABRIC else None


def _interfaces(context: Context) -> dict[str, Any] | None:
    tcp, kvs = context.facts.value("FI_TCP_IFACE"), context.facts.value("CCL_KVS_IFACE")
    if not _multi(context) or not tcp or not kvs or tcp in kvs or kvs in tcp:
        return None
    both = {"FI_TCP_IFACE": tcp, "CCL_KVS_IFACE": kvs}
    odd, right = ("CCL_KVS_IFACE", "FI_TCP_IFACE") if tcp == "lo" else ("FI_TCP_IFACE", "CCL_KVS_IFACE")
    return {"name": odd, "odd": shown(both[odd]), "other": right, "right": shown(both[right])}


def _mpi(context: Context) -> list[dict[str, Any]]:
    """Left over launcher variables while the transport is not said to be ofi."""
    if not _multi(context) or (context.facts.value("CCL_ATL_TRANSPORT") or "").lower() == "ofi":
        return []
    left = [name for start in _MPI_LEFT for name in sorted(context.facts.env or {}) if name.startswith(start)]
    # one cause, one error: the others are named beside it
    return [{"name": name, "severity": "info" if number else "error"} for number, name in enumerate(left)]


def _mpi_store(context: Context) -> bool:
    return _multi(context) and (context.facts.value("CCL_KVS_MODE") or "").lower() == "mpi"


def _cpu_flavour(context: Context) -> dict[str, Any] | None:
    value = (context.facts.value("CCL_CONFIGURATION") or "").lower()
    return {"value": value} if context.xpu and value == "cpu" else None


def _launcher(context: Context) -> bool:
    env = context.facts.env or {}
    alone = env.get("CCL_PROCESS_LAUNCHER", "").lower() == "none"
    return context.xpu and alone and not {"CCL_LOCAL_RANK", "CCL_LOCAL_SIZE"} <= env.keys()


def _local_size(context: Context) -> dict[str, Any] | None:
    value, world = context.facts.value("CCL_LOCAL_SIZE"), context.facts.world
    launcher = (context.facts.value("CCL_PROCESS_LAUNCHER") or "").lower()
    if launcher != "none" or not context.xpu or not world or not value or not is_number(value):
        return None
    return {"value": value, "world": world} if int(value) != world else None


def _no_shm_no_p2p(context: Context) -> bool:
    env = context.facts.env or {}
    return context.cuda and context.several and env.get("NCCL_P2P_DISABLE") == env.get("NCCL_SHM_DISABLE") == "1"


def _nvls_forced(context: Context) -> dict[str, Any] | None:
    cards = [context.kind(gpu) for gpu in context.cards]
    pcie = bool(cards) and all(card is not None and not card.nvlink for card in cards)
    value = context.facts.value("NCCL_NVLS_ENABLE")
    return {"value": value} if context.cuda and pcie and value == "1" else None


RULE = Rule(
    "transport, provider, interface",
    "The ranks meet over a host transport; on one host that is the loopback.",
    (
        Row(
            "transport.provider", "error", "env.FI_PROVIDER",
            "{value} gives oneCCL no libfabric provider",
            "{says} Initialisation ends in an fi_getinfo error.",
            "export FI_PROVIDER=tcp",
            "libfabric documentation; B70 field notes 1", _provider,
        ),
        Row(
            "transport.fabric", "warn", "env.FI_PROVIDER",
            "{value} wants its own network adapter",
            "On one host only the bootstrap uses the provider; without that adapter initialisation ends in fi_getinfo.",
            "export FI_PROVIDER=tcp",
            "libfabric documentation", _fabric,
        ),
        Row(
            "transport.interfaces", "warn", "env.{name}",
            "{odd} here, {right} in {other}",
            "The provider and the key-value store should use the same interface; the wrong one hangs at init.",
            "export FI_TCP_IFACE=lo CCL_KVS_IFACE=lo",
            "steveseguin/llm-optimizations", _interfaces,
        ),
        Row(
            "transport.mpi-left-over", "error", "env.{name}",
            "left over from an MPI launcher",
            "With such variables oneCCL stays on the mpi transport, which dies or hangs under vLLM's workers.",
            "unset {name}; export CCL_ATL_TRANSPORT=ofi",
            "oneCCL source", _mpi,
        ),
        Row(
            "transport.mpi-store", "warn", "env.CCL_KVS_MODE",
            "the key-value store goes over MPI",
            "vLLM starts its workers itself: there is no MPI launcher for it.",
            "unset CCL_KVS_MODE",
            "oneCCL source", _mpi_store,
        ),
        Row(
            "transport.cpu-flavour", "error", "env.CCL_CONFIGURATION",
            "the CPU flavour of oneCCL is chosen",
            "It has no GPU support.",
            "unset CCL_CONFIGURATION, or export CCL_CONFIGURATION=cpu_gpu_dpcpp",
            "oneCCL documentation", _cpu_flavour,
        ),
        Row(
            "transport.launcher", "error", "env.CCL_PROCESS_LAUNCHER",
            "no launcher, and no rank given by hand",
            "CCL_PROCESS_LAUNCHER=none fails without CCL_LOCAL_RANK and CCL_LOCAL_SIZE.",
            "unset CCL_PROCESS_LAUNCHER",
            "oneCCL source", _launcher,
        ),
        Row(
            "transport.local-size", "error", "env.CCL_LOCAL_SIZE",
            "{value} ranks here, the plan has {world}",
            "A wrong size hangs at init.",
            "unset CCL_LOCAL_SIZE CCL_LOCAL_RANK CCL_PROCESS_LAUNCHER",
            "oneCCL source", _local_size,
        ),
        Row(
            "transport.network-only", "warn", "env.NCCL_SHM_DISABLE",
            "neither peers nor shared memory",
            "With NCCL_P2P_DISABLE=1 as well only the network is left between cards of one host.",
            "unset NCCL_SHM_DISABLE NCCL_P2P_DISABLE",
            "NCCL documentation", _no_shm_no_p2p,
        ),
        Row(
            "transport.nvls-forced", "warn", "env.NCCL_NVLS_ENABLE",
            "multicast is forced on cards without NVLink",
            "NVLink SHARP cannot bind there; NCCL 2.29 fails where 2.28 fell back.",
            "unset NCCL_NVLS_ENABLE",
            "nccl issues", _nvls_forced,
        ),
    ),
)  # fmt: skip
