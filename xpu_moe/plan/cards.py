"""Cards as data: memory, bandwidth, links. `read` is a measured read bandwidth; where nobody measured it is 0.

`graph_pool` and `reserve` are bytes of a card that a launch loses to captured graphs and to the runtime (contexts,
kernels, staging buffers of the collective library).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Card:
    """One kind of card. `device_ids` are PCI ids; `name_part` stands in the name that the driver gives."""

    key: str
    device: str
    name_part: str
    device_ids: tuple[str, ...]
    memory_bytes: int
    usable_bytes: int
    nameplate: float
    read: float
    bfloat16: bool
    nvlink: bool
    capability: tuple[int, int] | None
    all_reduce_us: float
    reserve: int
    graph_pool: int
    source: str

    @property
    def bandwidth(self) -> float:
        """Measured bytes a second, else the nameplate's."""
        return self.read or self.nameplate


# Beside weights, activations and KV a B70 at utilization 0.95 lost 1.2 GiB (30.3 - 28.06 - 1.02 GiB of the B70 note: a
# display, 384 MiB of oneCCL staging, contexts, kernels); graphs took 1.15 GiB there.
_RESERVE = int(1.1 * GIB)
_GRAPHS = int(1.15 * GIB)


def _intel(
    key: str, part: str, ids: tuple[str, ...], gib: int, nameplate: float, read: float = 0.0, bf16: bool = True,
    source: str = "Intel datasheet",
) -> Card:  # fmt: skip
    usable = int((gib - 0.1) * GIB)  # 31.9 of 32 GiB are usable on a B70
    return Card(
        key, "xpu", part, ids, gib * GIB, usable, nameplate, read, bf16, False, None, 15.0, _RESERVE, _GRAPHS, source
    )  # fmt: skip


def _nvidia(
    key: str, part: str, ids: tuple[str, ...], memory: int, nameplate: float, capability: tuple[int, int],
    nvlink: bool = True, read: float = 0.0, source: str = "NVIDIA datasheet",
) -> Card:  # fmt: skip
    return Card(
        key, "cuda", part, ids, memory, memory, nameplate, read, capability >= (8, 0), nvlink, capability, 7.0,
        1 * GIB, 2 * GIB, source,
    )  # fmt: skip


_B70 = "Intel Arc Pro B70 datasheet; 581 GB/s read: hotschmoe/b70_ai_things; 15 us: steveseguin/llm-optimizations"
_H200 = "NVIDIA H200 datasheet; 4.42 TB/s read and 7 us: measured on 2026-11-29"

CARDS: tuple[Card, ...] = (
    _intel("b70", "B70", ("0xe223",), 32, 608e9, 581e9, source=_B70),
    _intel("b65", "B65", ("0xe220", "0xe221", "0xe222"), 32, 608e9),
    _intel("b60", "B60", ("0xe211",), 24, 456e9),
    _intel("b580", "B580", ("0xe20b",), 12, 456e9),
    _intel("b570", "B570", ("0xe20c",), 10, 380e9),
    _intel("b50", "B50", ("0xe212",), 16, 224e9),
    _intel("a770", "A770", ("0x56a0",), 16, 560e9, bf16=False),
    _intel("a750", "A750", ("0x56a1",), 8, 512e9, bf16=False),
    _nvidia("h200", "H200", ("0x2335",), 151397597184, 4.8e12, (9, 0), read=4.42e12, source=_H200),
    _nvidia("h100-pcie", "H100 PCIe", ("0x2331",), 80 * GIB, 2.0e12, (9, 0), nvlink=False),
    _nvidia("h100", "H100", ("0x2330",), 80 * GIB, 3.35e12, (9, 0)),
    _nvidia("h800", "H800", ("0x2324",), 80 * GIB, 3.35e12, (9, 0)),
    _nvidia("h20", "H20", ("0x2329",), 96 * GIB, 4.0e12, (9, 0)),
    _nvidia("b200", "B200", ("0x2901",), 180 * GIB, 8.0e12, (10, 0)),
    _nvidia("a100-pcie", "A100-PCIE", ("0x20f1", "0x20b5"), 80 * GIB, 1.9e12, (8, 0), nvlink=False),
    _nvidia("a100", "A100", ("0x20b2", "0x20b0"), 80 * GIB, 2.0e12, (8, 0)),
    _nvidia("rtx-pro-6000", "RTX PRO 6000", (), 96 * GIB, 1.79e12, (12, 0), nvlink=False),
    _nvidia("rtx-5090", "RTX 5090", ("0x2b85",), 32 * GIB, 1.79e12, (12, 0), nvlink=False),
    _nvidia("rtx-4090", "RTX 4090", ("0x2684",), 24 * GIB, 1.01e12, (8, 9), nvlink=False),
    _nvidia("rtx-3090", "RTX 3090", ("0x2204",), 24 * GIB, 0.94e12, (8, 6), nvlink=False),
    _nvidia("rtx-a6000", "RTX A6000", ("0x2230",), 48 * GIB, 0.77e12, (8, 6), nvlink=False),
    _nvidia("l40s", "L40S", ("0x26b9",), 48 * GIB, 0.86e12, (8, 9), nvlink=False),
    _nvidia("l4", "NVIDIA L4", ("0x27b8",), 24 * GIB, 0.3e12, (8, 9), nvlink=False),
    _nvidia("a10", "A10", ("0x2236",), 24 * GIB, 0.6e12, (8, 6), nvlink=False),
    _nvidia("v100", "V100", (), 32 * GIB, 0.9e12, (7, 0)),
    _nvidia("t4", "T4", ("0x1eb8",), 16 * GIB, 0.32e12, (7, 5), nvlink=False),
)
BY_KEY = {card.key: card for card in CARDS}


def card_of(device_id: str | None, name: str | None) -> Card | None:
    """The row for a card, by PCI id, else by name; None where the table has none."""
    for card in CARDS:
        if device_id and device_id.lower() in card.device_ids:
            return card
    return next((card for card in CARDS if name and card.name_part in name), None)


def cpu() -> Card:
    """This machine's memory as a card: for `--card cpu`."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        memory = 0
    return Card("cpu", "cpu", "CPU", (), memory, memory, 0.0, 0.0, True, False, None, 0.0, GIB, 0, "sysconf")
