"""NVIDIA cards through the management library's command or binding: name and memory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from xpu_moe.doctor.collect.where import Where

_LIMIT_S = 5


def complete(cards: list[dict[str, Any]], where: Where) -> None:
    """Fill in name and memory of NVIDIA cards in place, where `nvidia-smi` is there and answers."""
    if not any("NVIDIA" in card["name"] for card in cards) or where.root != Path("/"):
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
        address = parts[0].lower()[-12:]
        for card in cards:
            if card["pci"].endswith(address):
                card["name"], card["memory_bytes"] = parts[1], int(parts[2]) << 20
