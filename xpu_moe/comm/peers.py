"""Peer memory for a communicator: the device room's own collectives, where the ranks can reach each other's memory.

    why_not = comm.map_peers(communicator)      # on every rank, once, after the group exists

From then on the dispatcher takes the room's kernels for the sizes of its table, and the library for the others.
"""

from __future__ import annotations

import importlib
from typing import Any

# device kind -> the room with setup(communicator) -> reason or "" and close(communicator)
ROOMS = {"cuda": "xpu_moe.cuda.collectives"}
_KINDS = {"nccl": "cuda", "xccl": "xpu", "ccl": "xpu", "gloo": "cpu"}


def room(communicator: Any) -> Any:
    """The device room's module for a communicator, None where its device kind has none."""
    name = ROOMS.get(_KINDS.get(communicator.backend, ""))
    return importlib.import_module(name) if name else None


def map_peers(communicator: Any, **options: Any) -> str:
    """Map the ranks' memory into each other (collective). Returns "" or why not, the same on every rank."""
    found = room(communicator)
    if found is None:
        return f"no peer-memory collectives for {communicator.backend}"
    return found.setup(communicator, **options)


def unmap_peers(communicator: Any) -> None:
    """Undo `map_peers` (collective); nothing where nothing is mapped."""
    found = room(communicator)
    if found is not None:
        found.close(communicator)
