"""NVIDIA cards through the management library: its Python binding, else its command. Name and memory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from xpu_moe.doctor.collect.where import Where

_LIMIT_S = 5


def _bound(cards: list[dict[str, Any]]) -> bool:
    """Ask NVML through `pynvml`; False where the binding is missing or the library does not answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
        found = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        seen = [(_text(pynvml.nvmlDeviceGetPciInfo(h).busId), _text(pynvml.nvmlDeviceGetName(h)),
                 int(pynvml.nvmlDeviceGetMemoryInfo(h).total)) for h in found]  # fmt: skip
    except Exception:  # the binding raises its own error classes, and ImportError
        return False
    for address, name, memory in seen:
        _fill(cards, address, name, memory)
    return bool(seen)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _fill(cards: list[dict[str, Any]], address: str, name: str, memory: int) -> None:
    for card in cards:
        if card["pci"].endswith(address.lower()[-12:]):
            card["name"], card["memory_bytes"] = name, memory


def complete(cards: list[dict[str, Any]], where: Where) -> None:
    """Fill in name and memory of NVIDIA cards in place, where `nvidia-smi` is there and answers."""
    if not any("NVIDIA" in card["name"] for card in cards) or where.root != Path("/"):
        return
    if _bound(cards):
        return
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    query = [program, "--query-gpu=pci.bus_id,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_LIMIT_S, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return
    for line in answer.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 3 or not parts[2].isdigit():
            continue
        _fill(cards, parts[0], parts[1], int(parts[2]) << 20)
