"""Which device does this machine have? Read from /sys, without torch: nothing is installed yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xpu_moe.launch.errors import USAGE, LaunchError

_DISPLAY_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_INTEL, _NVIDIA = "0x8086", "0x10de"
# Discrete Intel GPUs by the start of their PCI id. An integrated GPU has none of these and is not served from.
# Source: the device tables of the Linux drivers xe and i915.
_INTEL_CARDS = (
    ("0xe2", "Arc B-series (Battlemage)"),
    ("0x56", "Arc A-series (Alchemist)"),
    ("0x0bd", "Data Center GPU Max"),
    ("0x0b6", "Data Center GPU Max"),
)


@dataclass(frozen=True)
class Found:
    """The kind to serve on, how many cards of it, and what was seen in words (`notes`: seen, but not used)."""

    kind: str
    count: int
    why: str
    notes: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()  # PCI device ids of the cards, 0xe223
    driverless: tuple[str, ...] = ()  # cards that are there and have no driver, as their notes say it


def detect(wanted: str | None = None, root: Path = Path("/")) -> Found:
    """The device to serve on: Intel cards first, then NVIDIA, then the CPU. `wanted` (a flag) decides where given."""
    cards, notes, driverless = _cards(root)
    ids = {kind: tuple(device for _, device in found if device) for kind, found in cards.items()}
    if wanted:
        count = max(len(cards.get(wanted, ())), 1)
        return Found(wanted, count, "flag --device", tuple(notes), ids.get(wanted, ()))
    for kind in ("xpu", "cuda"):
        if cards[kind]:
            why = f"{len(cards[kind])} x {cards[kind][0][0]}"
            return Found(kind, len(cards[kind]), why, tuple(notes), ids[kind])
    why = "no accelerator with a driver was found"
    return Found("cpu", 1, why, tuple(notes), driverless=tuple(driverless))


def refuse_idle_cards(found: Found) -> None:
    """LaunchError(USAGE) where a model would go to the CPU only because its cards have no driver."""
    if found.driverless:
        more = f" (and {len(found.driverless) - 1} more)" if len(found.driverless) > 1 else ""
        raise LaunchError(
            USAGE,
            f"{found.driverless[0]}{more}. Load the driver (Intel: sudo modprobe xe, then dmesg | grep -i xe; a B70 "
            "wants kernel 6.17 or later. NVIDIA: nvidia-smi), or take the CPU with --device cpu",
        )


def _cards(root: Path) -> tuple[dict[str, list[tuple[str, str]]], list[str], list[str]]:
    """Kind -> (name, PCI device id) of each usable card; notes; and those of them that are about lacking drivers."""
    cards: dict[str, list[tuple[str, str]]] = {"xpu": [], "cuda": []}
    notes: list[str] = []
    driverless: list[str] = []
    try:
        slots = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return cards, ["/sys/bus/pci/devices cannot be read: no accelerator can be seen"], []
    for slot in slots:
        vendor, device, function = (_read(slot / name) for name in ("vendor", "device", "class"))
        if not function.startswith(_DISPLAY_CLASSES):
            continue
        driver = (slot / "driver").resolve().name if (slot / "driver").exists() else ""
        kind, name = _name(vendor, device)
        if not kind:
            if vendor == _INTEL:
                notes.append(f"{slot.name}: integrated Intel graphics ({device}) is not used")
        elif not driver or driver == "vfio-pci":
            driverless.append(f"{slot.name}: {name} ({device}) has no driver ({driver or 'none'} bound): not used")
            notes.append(driverless[-1])
        else:
            cards[kind].append((f"{name} ({device}, driver {driver})", device))
    if not cards["cuda"] and (root / "proc/driver/nvidia/gpus").is_dir():  # a virtual machine may hide the PCI slot
        cards["cuda"] = [
            (f"NVIDIA GPU ({gpu.name})", "") for gpu in sorted((root / "proc/driver/nvidia/gpus").iterdir())
        ]
    return cards, notes, driverless


def _name(vendor: str, device: str) -> tuple[str, str]:
    if vendor == _NVIDIA:
        return "cuda", "NVIDIA GPU"
    if vendor == _INTEL:
        for start, name in _INTEL_CARDS:
            if device.startswith(start):
                return "xpu", name
    return "", ""


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip().lower()
    except OSError:
        return ""
