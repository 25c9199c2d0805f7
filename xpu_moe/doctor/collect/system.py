"""The system: kernel, container, capabilities, shared memory, IOMMU, host memory. No host or user names."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

from xpu_moe.doctor.collect.libraries import compute_runtime
from xpu_moe.doctor.collect.where import Where, entries, known, number, text

_CAPABILITIES = {19: "SYS_PTRACE", 21: "SYS_ADMIN", 14: "IPC_LOCK", 23: "SYS_NICE"}
_CONTAINER_MARKS = ("docker", "libpod", "containerd", "kubepods", "lxc")


def facts(where: Where) -> dict[str, Any]:
    """The `os` part."""
    status = _pairs(text(where.path("/proc/self/status")) or "")
    memory = _pairs(text(where.path("/proc/meminfo")) or "")
    return {
        "os": known(
            {
                "kernel": text(where.path("/proc/sys/kernel/osrelease")),
                "distro": _distro(text(where.path("/etc/os-release")) or ""),
                "in_container": _in_container(where),
                "capabilities": _capabilities(status.get("CapEff")),
                "yama_ptrace_scope": number(where.path("/proc/sys/kernel/yama/ptrace_scope")),
                "seccomp": {"0": False, "1": True, "2": True}.get(status.get("Seccomp", "")),
                "shm_bytes": _shm(where),
                "iommu": _iommu(where),
                "dri_by_path": _by_path(where),
                "dri_access": _access(where),
                "ram_bytes": _kib(memory.get("MemTotal")),
                "swap_bytes": _kib(memory.get("SwapTotal")),
                "compute_runtime": compute_runtime(where),
                "compiler": _compiler(where),
            }
        )
    }


def _pairs(content: str) -> dict[str, str]:
    found = {}
    for line in content.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found[key.strip()] = value.strip()
    return found


def _kib(value: str | None) -> int | None:
    found = re.match(r"(\d+) kB", value or "")
    return int(found.group(1)) * 1024 if found else None


def _distro(content: str) -> str | None:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', content, re.M)
    return found.group(1) if found else None


def _in_container(where: Where) -> bool | None:
    if where.path("/.dockerenv").exists() or where.path("/run/.containerenv").exists():
        return True
    groups = text(where.path("/proc/1/cgroup"))
    if groups is None:
        return None
    return any(mark in groups for mark in _CONTAINER_MARKS)


def _capabilities(mask: str | None) -> list[str] | None:
    try:
        bits = int(mask or "", 16)
    except ValueError:
        return None
    return [name for bit, name in _CAPABILITIES.items() if bits >> bit & 1]


def _compiler(where: Where) -> bool | None:
    """Is g++ on the engine's PATH? A CXX that is set is another compiler, whose name tells nothing."""
    path = where.environ.get("PATH")
    if where.environ.get("CXX") or not path:
        return None
    folders = [where.path(folder) for folder in path.split(":") if folder.startswith("/")]
    return shutil.which("g++", path=":".join(map(str, folders))) is not None


def _shm(where: Where) -> int | None:
    try:
        found = os.statvfs(where.path("/dev/shm"))
    except FileNotFoundError:
        return 0 if where.path("/dev").is_dir() else None
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _iommu(where: Where) -> str | None:
    """off, on (translated) or passthrough, by the type of the kernel's IOMMU groups."""
    groups = where.path("/sys/kernel/iommu_groups")
    if not groups.is_dir():
        return None
    kinds = {text(kind) for kind in entries(groups, "*/type")}
    if not entries(groups):
        return "off"
    if kinds and kinds <= {"identity"}:
        return "passthrough"
    return "on"


def _access(where: Where) -> bool | None:
    """May this user open a render node? None where there is none."""
    nodes = entries(where.path("/dev/dri"), "renderD*")
    return any(os.access(node, os.R_OK | os.W_OK) for node in nodes) if nodes else None


def _by_path(where: Where) -> bool | None:
    if not where.path("/dev/dri").is_dir():
        return None
    return bool(entries(where.path("/dev/dri/by-path"), "*-render"))
