"""Likely causes of a hang, a death or wrong data, as a table. A cause whose sign is in the log comes first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Of a log, the lines that are worth showing: the library's own, errors, and any that names a variable or a device file.
_TELLING = re.compile(r"CCL_|NCCL|libfabric|gloo|rror|ailed|imed out|xcept|/dev/|\b[A-Z]+_[A-Z0-9_]{3,}=")


@dataclass(frozen=True)
class Cause:
    """One cause: for which backends (* = all), in which phases (* = all, "" = only where its sign is in the log), its
    sign in the log ("" = it leaves none), what to say and do."""

    backends: str
    phases: str
    sign: str
    says: str
    unless: str = ""  # NAME=VALUE of the environment that rules it out


_INTEL, _CCL, _EVERY = "xccl ccl oneccl", "xccl ccl oneccl oneccl-cpu", "*"
CAUSES: tuple[Cause, ...] = (
    Cause(_EVERY, "", r"[Aa]ddress already in use|EADDRINUSE",
          "the port of the rendezvous is taken: choose another (--port, or torchrun's --master-port)"),
    Cause(_EVERY, "", r"/dev/shm|No space left|shared memory segment",
          "shared memory: /dev/shm is full, read-only or small; in a container --ipc=host or --shm-size=8g"),
    Cause(_EVERY, "", r"different librar|runs .+, rank \d+ runs",
          "the ranks run different libraries: one environment, one library for all"),
    Cause(_INTEL, "init warmup", r"pidfd|ptrace",
          "IPC handles: pidfd wants SYS_PTRACE (or yama ptrace_scope 0) and an unfiltered pidfd_getfd"),
    Cause(_INTEL, "init warmup", r"device_fd|opendir|by-path",
          "render nodes: mount /dev/dri/by-path into the container and join group render"),
    Cause(_INTEL, "*", r"zeMemOpenIpcHandle|INVALID_ARGUMENT",
          "peer access: the host refuses it; take `python -m xpu_moe.env --profile no-p2p`"),
    Cause(_CCL, "init", r"find interface|interface",
          "network interface: CCL_KVS_IFACE=lo and FI_TCP_IFACE=lo on one host", "CCL_KVS_IFACE=lo"),
    Cause(_CCL, "init", r"fi_getinfo|provider", "libfabric provider: FI_PROVIDER=tcp, FI_PROVIDER_PATH unset",
          "FI_PROVIDER=tcp"),
    Cause(_CCL, "init", r"MPIDI_GPU_init|MPI launcher", "host transport: CCL_ATL_TRANSPORT=ofi",
          "CCL_ATL_TRANSPORT=ofi"),
    Cause(_INTEL, "init warmup check timed", "",
          "CCL_ZE_IPC_EXCHANGE unset: a stand-alone probe hung so where pidfd cured it", "CCL_ZE_IPC_EXCHANGE=pidfd"),
    Cause(_INTEL, "warmup check timed", r"CCL_ALLREDUCE|B60",
          "oneCCL 2022.0 and 2022.1 hang on B60 with the default algorithm: CCL_ALLREDUCE=ring", "CCL_ALLREDUCE=ring"),
    Cause(_INTEL, "warmup check timed", "",
          "peer access that the driver reports and the host does not keep: run `python -m xpu_moe.probe p2p`"),
    Cause(_CCL, "init warmup", r"WORKER_COUNT", "CCL_WORKER_COUNT over 1 hung at init: unset it",
          "CCL_WORKER_COUNT=1"),
    Cause(_INTEL, "graph", "", "a captured low-latency ring replays a stale sequence number: profile graph sets "
          "CCL_SYCL_FORCE_RECORDING_PATH=1", "CCL_SYCL_FORCE_RECORDING_PATH=1"),
    Cause("nccl", "init warmup", r"NVLS|multicast",
          "NVLink multicast cannot bind: `python -m xpu_moe.env --profile no-multicast --device cuda`",
          "NCCL_NVLS_ENABLE=0"),
    Cause("nccl", "init warmup check timed", r"P2P|IOMMU|ACS",
          "peer access that hangs behind an IOMMU or ACS: NCCL_P2P_DISABLE=1 to see", "NCCL_P2P_DISABLE=1"),
    Cause("nccl", "init", r"[Ss]ocket|NET/", "network interface: NCCL_SOCKET_IFNAME (the loopback has to be named)"),
    Cause("gloo", "init", r"onnect|resolve", "network interface: GLOO_SOCKET_IFNAME=lo on one host",
          "GLOO_SOCKET_IFNAME=lo"),
    Cause(_EVERY, "start", r"ModuleNotFound|ImportError|cannot open shared object",
          "a rank cannot load its libraries: see the log; one oneAPI generation in one process"),
    Cause(_EVERY, "", r"SIGKILL|Out of memory|oom", "a rank was killed from outside: out of memory? see dmesg"),
    Cause(_EVERY, "init", "", "a rank that never came: was every host started, with one world size?"),
    Cause(_EVERY, "*", "", "a rank that stands still: see where each rank is"),
)  # fmt: skip


def likely(backend: str, phase: str, log: Sequence[str], environ: Mapping[str, str], most: int = 4) -> list[str]:
    """Sentences: causes whose sign is in the log, then those that leave none, then the others of the phase."""
    text = "\n".join(log)
    signed: list[str] = []
    silent: list[str] = []
    others: list[str] = []
    for cause in CAUSES:
        name, _, value = cause.unless.partition("=")
        if cause.backends != "*" and backend not in cause.backends.split():
            continue
        if cause.sign and re.search(cause.sign, text) is not None:
            signed.append(cause.says)
        elif (cause.phases == "*" or phase in cause.phases.split()) and not (name and environ.get(name) == value):
            (others if cause.sign else silent).append(cause.says)
    return (signed + silent + others)[:most]


def telling(lines: Sequence[str], most: int = 8) -> list[str]:
    """The last lines of a log that say something, else its last lines."""
    said = [line for line in lines if _TELLING.search(line)] or [line for line in lines if line.strip()]
    return said[-most:]
