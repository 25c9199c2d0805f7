"""What is in this machine. Never raises for a missing runtime: it says what it could not see.

Bandwidths are nameplate figures of the vendor's datasheet unless a `source` says "measured"; a card that is not in the
table has none, and nothing is guessed.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from functools import cache
from typing import Any

KINDS = ("xpu", "cuda", "cpu")


@dataclass(frozen=True)
class Device:
    """One device.

    `architecture` is bmg-g31, bmg-g21, sm_90, avx512, avx2, …; "" where unknown. `memory` in bytes, `bandwidth` in
    B/s (0 = unknown) with `bandwidth_source`. `peers` are the indices of devices of the same kind that the runtime
    reports as directly reachable (a report, no proof: see `python -m xpu_moe.probe p2p`).
    """

    kind: str
    index: int
    name: str
    architecture: str
    memory: int
    bandwidth: float = 0.0
    bandwidth_source: str = ""
    peers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """The devices found, and one sentence for each runtime that could not be asked."""

    devices: tuple[Device, ...]
    unseen: tuple[str, ...] = field(default=())


# part of the device's name -> (architecture, B/s, source)
_CARDS: tuple[tuple[str, str, float, str], ...] = (
    ("B70", "bmg-g31", 608e9, "Intel Arc Pro B70 datasheet, 256-bit GDDR6 at 19 Gb/s"),
    ("B65", "bmg-g31", 608e9, "Intel Arc Pro B65 datasheet"),
    ("B60", "bmg-g21", 456e9, "Intel Arc Pro B60 datasheet, 192-bit GDDR6 at 19 Gb/s"),
    ("B580", "bmg-g21", 456e9, "Intel Arc B580 datasheet"),
    ("B570", "bmg-g21", 380e9, "Intel Arc B570 datasheet"),
    ("B50", "bmg-g21", 224e9, "Intel Arc Pro B50 datasheet"),
    ("A770", "acm-g10", 560e9, "Intel Arc A770 datasheet"),
    ("A750", "acm-g10", 512e9, "Intel Arc A750 datasheet"),
    ("H200", "sm_90", 4.8e12, "NVIDIA H200 datasheet"),
    ("H800", "sm_90", 3.35e12, "NVIDIA H800 SXM datasheet"),
    ("H100 PCIe", "sm_90", 2.0e12, "NVIDIA H100 PCIe datasheet"),
    ("H100", "sm_90", 3.35e12, "NVIDIA H100 SXM datasheet"),
    ("H20", "sm_90", 4.0e12, "NVIDIA H20 datasheet"),
    ("A100", "sm_80", 2.0e12, "NVIDIA A100 80 GB SXM datasheet"),
)
# PCI device ids of Battlemage cards (shared by names that a driver shortens to "Intel(R) Graphics [0xe223]").
_PCI_IDS = {"0xe223": "B70", "0xe211": "B60", "0xe212": "B50", "0xe20b": "B580", "0xe20c": "B570"}


def card(name: str) -> tuple[str, float, str]:
    """(architecture, bandwidth in B/s, source) of a device name; ("", 0, "") where the table has none."""
    for identifier, alias in _PCI_IDS.items():
        if identifier in name.lower():
            name = alias
    for part, architecture, bandwidth, source in _CARDS:
        if part in name:
            return architecture, bandwidth, source
    return "", 0.0, ""


@cache
def inventory() -> Inventory:
    """Everything that can be seen in this process: accelerators first, the CPU last."""
    found: list[Device] = []
    unseen: list[str] = []
    for look in (_intel, _nvidia):
        devices, reasons = look()
        found += devices
        unseen += reasons
    return Inventory((*found, _cpu()), tuple(unseen))


def devices(kind: str | None = None) -> tuple[Device, ...]:
    """All devices, or those of one kind."""
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, wanted one of {', '.join(KINDS)}")
    return tuple(d for d in inventory().devices if kind in (None, d.kind))


def current() -> Device:
    """The device that this process would compute on: the first accelerator, else the CPU."""
    return inventory().devices[0]


@cache
def architecture(kind: str) -> str:
    """The architecture of the first device of a kind, "" where none was seen."""
    found = devices(kind) if kind in KINDS else ()
    return found[0].architecture if found else ""


def _torch() -> tuple[Any, str]:
    if importlib.util.find_spec("torch") is None:
        return None, "torch is not installed"
    try:
        import torch
    except Exception as error:  # half an installation fails in any way
        return None, f"torch does not import: {error}"
    if not hasattr(torch, "version"):  # a folder of that name, left by an uninstallation
        return None, "torch does not import: no package, but a folder without one"
    return torch, ""


def _intel() -> tuple[list[Device], list[str]]:
    torch, reason = _torch()
    xpu = getattr(torch, "xpu", None) if torch else None
    if xpu is not None and getattr(torch.version, "xpu", None):
        try:
            count = xpu.device_count()
        except RuntimeError as error:
            return [], [f"Intel GPUs: torch.xpu could not count them: {error}"]
        found = []
        for index in range(count):
            properties = xpu.get_device_properties(index)
            peers = tuple(other for other in range(count) if other != index and _peer(xpu, index, other))
            found.append(_accelerator("xpu", index, properties.name, properties.total_memory, peers))
        return found, [] if found else ["Intel GPUs: torch.xpu sees none (group render? driver xe?)"]
    if importlib.util.find_spec("dpctl") is not None:
        return _intel_dpctl()
    return [], [f"Intel GPUs: {reason or 'this torch is built without XPU'}, and dpctl is not installed"]


def _intel_dpctl() -> tuple[list[Device], list[str]]:
    try:
        import dpctl
    except (ImportError, OSError) as error:
        return [], [f"Intel GPUs: dpctl does not import: {error}"]
    gpus = dpctl.get_devices(backend="level_zero", device_type="gpu")
    found = [
        _accelerator("xpu", index, gpu.name, gpu.global_mem_size, _dpctl_peers(gpus, index))
        for index, gpu in enumerate(gpus)
    ]
    return found, [] if found else ["Intel GPUs: dpctl sees none"]


def _dpctl_peers(gpus: list[Any], index: int) -> tuple[int, ...]:
    ask = getattr(gpus[index], "can_access_peer", None)
    if ask is None:
        return ()
    return tuple(other for other, gpu in enumerate(gpus) if other != index and ask(gpu))


def _nvidia() -> tuple[list[Device], list[str]]:
    torch, reason = _torch()
    if torch is None or not torch.version.cuda:
        return [], [f"NVIDIA GPUs: {reason or 'this torch is built without CUDA'}"]
    if not torch.cuda.is_available():
        return [], ["NVIDIA GPUs: torch.cuda sees none"]
    count = torch.cuda.device_count()
    found = []
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        peers = tuple(
            other for other in range(count) if other != index and torch.cuda.can_device_access_peer(index, other)
        )
        device = _accelerator("cuda", index, properties.name, properties.total_memory, peers)
        found.append(
            Device(
                device.kind, index, device.name, f"sm_{properties.major}{properties.minor}", device.memory,
                device.bandwidth, device.bandwidth_source, peers,
            )
        )  # fmt: skip
    return found, []


def _peer(runtime: Any, index: int, other: int) -> bool:
    ask = getattr(runtime, "can_device_access_peer", None)
    try:
        return bool(ask and ask(index, other))
    except RuntimeError:
        return False


def _accelerator(kind: str, index: int, name: str, memory: int, peers: tuple[int, ...]) -> Device:
    arch, bandwidth, source = card(name)
    return Device(kind, index, name, arch, memory, bandwidth, source, peers)


def _cpu() -> Device:
    name, flags = "CPU", set()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
            for line in info:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    name = value.strip()
                elif key.strip() == "flags":
                    flags = set(value.split())
                    break
    except OSError:
        pass
    arch = next((a for f, a in (("amx_tile", "amx"), ("avx512f", "avx512"), ("avx2", "avx2")) if f in flags), "")
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        memory = 0
    return Device("cpu", 0, name, arch, memory)
