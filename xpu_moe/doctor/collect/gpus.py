"""The cards: from /sys, and NVML for NVIDIA. No root, no runtime.

The link is that of the bridge above an Intel card: the endpoint behind a card's own switch reports 2.5 GT/s x1.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from xpu_moe.doctor.collect.nvml import complete
from xpu_moe.doctor.collect.where import Where, entries, known, number, text
from xpu_moe.plan.cards import card_of

_INTEL, _NVIDIA = 0x8086, 0x10DE
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_DISPLAY_CLASSES = (0x0300, 0x0302, 0x0380)  # VGA, 3D, other display
_PREFETCHABLE = 0x8


def facts(where: Where) -> dict[str, Any]:
    """`gpus`; absent when /sys/bus/pci cannot be read (that is not "no card")."""
    bus = where.path("/sys/bus/pci/devices")
    if not bus.is_dir():
        return {}
    found = []
    for device in entries(bus):
        card = _card(where, device)
        if card is not None:
            found.append(card)
    complete(found, where)
    return {"gpus": [known({"index": index, **card}) for index, card in enumerate(found)]}


def _card(where: Where, device: Path) -> dict[str, Any] | None:
    vendor, kind = number(device / "vendor", 16), number(device / "class", 16)
    if vendor not in (_INTEL, _NVIDIA) or kind is None or kind >> 8 not in _DISPLAY_CLASSES:
        return None
    identity = number(device / "device", 16)
    if identity is None:
        return None
    device_id = f"0x{identity:04x}"
    chain = _chain(device)
    if vendor == _INTEL and len(chain) == 1:
        return None  # integrated graphics sit on the root complex; Level Zero numbers them after all cards
    slot = chain[2] if vendor == _INTEL and len(chain) >= 4 else chain[0] if chain else device
    row = card_of(device_id, None)
    nodes = entries(device / "drm", "card[0-9]*")
    node = next((n for n in nodes if "-" not in n.name), None)
    return {
        "pci": device.name,
        "device_id": device_id,
        "name": _name(row.name_part if row else None, vendor, device_id),
        "memory_bytes": _memory(device, vendor),
        "bar_bytes": _bar(device),
        "guc": _guc(where, node),
        "link_gts": _speed(text(slot / "current_link_speed", 64)),
        "link_width": number(slot / "current_link_width"),
        "display_attached": _display(node),
        "root_port": chain[-1].name if len(chain) > 1 else None,
        "driver": _driver(chain[0]) if chain else None,
    }


def _driver(device: Path) -> str | None:
    """The kernel driver that holds the card, "none" where nothing does; None where the folder cannot be read."""
    link = device / "driver"
    if link.is_symlink():
        return link.resolve().name
    return "none" if text(device / "vendor") else None


def _name(part: str | None, vendor: int, device_id: str) -> str:
    if vendor == _NVIDIA:
        return f"NVIDIA {part or device_id}"
    return f"Intel Arc {part}" if part else f"Intel Graphics {device_id}"


def _chain(device: Path) -> list[Path]:
    """The device and the bridges above it, nearest first."""
    try:
        real = device.resolve(strict=True)
    except (OSError, RuntimeError):
        return []
    chain = [real]
    for parent in real.parents:
        if not _PCI.match(parent.name):
            break
        chain.append(parent)
    return chain


def _memory(device: Path, vendor: int) -> int | None:
    if vendor != _INTEL:
        return None
    tiles = [number(tile, 0) for tile in entries(device, "tile*/physical_vram_size_bytes")]
    known_tiles = [size for size in tiles if size]
    if known_tiles:
        return sum(known_tiles)
    return number(device / "mem_info_vram_total") or number(device / "lmem_total_bytes")


def _bar(device: Path) -> int | None:
    """The largest prefetchable window: that through which the card's memory is seen."""
    best = 0
    for line in (text(device / "resource") or "").splitlines()[:6]:
        try:
            start, end, flags = (int(part, 16) for part in line.split())
        except ValueError:
            continue
        if end > start and flags & _PREFETCHABLE:
            best = max(best, end - start + 1)
    return best or None


def _guc(where: Where, node: Path | None) -> str | None:
    """GuC's version stands in debugfs, which most users may not read."""
    if node is None:
        return None
    number_ = node.name.removeprefix("card")
    for info in entries(where.path(f"/sys/kernel/debug/dri/{number_}"), "gt0/uc/guc_info"):
        found = re.search(r"found (?:in use )?version:? *(\d+\.\d+\.\d+)|version: .*?(\d+\.\d+\.\d+)", text(info) or "")
        if found:
            return found.group(1) or found.group(2)
    return None


def _speed(value: str | None) -> float | None:
    found = re.match(r"(\d+(?:\.\d+)?) GT/s", value or "")
    return float(found.group(1)) if found else None


def _display(node: Path | None) -> bool | None:
    if node is None:
        return None
    states = [text(status, 32) for status in entries(node, f"{node.name}-*/status")]
    return "connected" in states if states else None
