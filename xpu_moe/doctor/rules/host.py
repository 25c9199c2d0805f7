"""The host: kernel, IOMMU, memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xpu_moe.doctor.facts import Gpu
from xpu_moe.doctor.finding import Severity
from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.versions import within

_GIB = 1 << 30


@dataclass(frozen=True)
class Kernel:
    """`ids`: beginnings of PCI ids; the first row that fits the card and the kernel speaks."""

    ids: tuple[str, ...]
    kernels: str
    severity: Severity
    says: str


_G31 = ("0xe220", "0xe221", "0xe222", "0xe223")
KERNELS: tuple[Kernel, ...] = (
    Kernel(
        ("0xe2",), "<6.11", "error", "Battlemage needs the xe driver of 6.11 or later; this kernel does not know it"
    ),
    Kernel(_G31, "<6.14", "error", "this kernel does not know the card, and no boot option helps"),
    Kernel(("0xe2",), ">=6.11,<6.12", "warn", "6.11 takes Battlemage only with xe.force_probe"),
    Kernel(_G31, ">=6.14,<6.15", "info", "6.14 works with Intel's own set of packages"),
    Kernel(_G31, ">=6.15,<6.17", "warn", "seen working: Intel's 6.14 set, 6.17.0-23 and later"),
    Kernel(("0x56",), "<6.2", "warn", "Alchemist cards need 6.2 or later"),
)  # source: B70 field notes 11


def _kernel(context: Context) -> dict[str, Any] | None:
    kernel = context.os.kernel or ""
    if "microsoft" in kernel.lower():
        return None  # WSL brings the cards in another way
    for row in KERNELS:
        ids = [gpu.device_id for gpu in context.facts.gpus or () if (gpu.device_id or "").startswith(row.ids)]
        if ids and within(kernel, row.kernels):
            return {"kernel": kernel, "says": row.says, "id": ids[0], "severity": row.severity}
    return None


def _iommu(context: Context) -> bool:
    """Cards that talk over PCIe only: all of Intel's, NVIDIA's without NVLink."""
    if (
        context.os.iommu not in ("on", "translated", "enabled", "strict", "lazy", "dma", "dma-fq")
        or not context.several
    ):
        return False
    if context.xpu:
        return True
    cards = [context.kind(gpu) for gpu in context.cards]
    return context.cuda and bool(cards) and all(card is not None and not card.nvlink for card in cards)


def _memory_of(cards: tuple[Gpu, ...]) -> int | None:
    sizes = [gpu.memory_bytes for gpu in cards]
    return sum(size for size in sizes if size) if sizes and all(sizes) else None


def _ram(context: Context) -> dict[str, Any] | None:
    ram, device = context.os.ram_bytes, _memory_of(context.cards)
    if not context.xpu or ram is None or device is None:
        return None
    swap = context.os.swap_bytes or 0
    if ram + swap < device or (context.os.swap_bytes == 0 and ram <= device * 102 // 100):
        return {"ram": round(ram / _GIB), "swap": round(swap / _GIB), "device": round(device / _GIB)}
    return None


def _no_runtime(context: Context) -> bool:
    """Cards of Intel, and no Level Zero driver in user space. Without a plan the torch in use tells nothing of it."""
    intel = any("intel" in (gpu.name or "").lower() for gpu in context.facts.gpus or ())
    return intel and context.plan.device in (None, "xpu") and context.os.compute_runtime is False


RULE = Rule(
    "kernel too old for the card, IOMMU, host memory",
    "What the host must bring before the first library is loaded.",
    (
        Row(
            "host.kernel", "error", "os.kernel",
            "kernel {kernel} and card {id} do not go together",
            "{says}.",
            "install a kernel 6.17 or later (Ubuntu: linux-generic-hwe), or Intel's 6.14 set",
            "B70 field notes 11; intel/llm-scaler FAQ", _kernel,
        ),
        Row(
            "host.compute-runtime", "error", "os.compute_runtime",
            "Intel's compute runtime is not installed",
            "libze_intel_gpu.so is nowhere: Level Zero, and so torch, sees no card. The kernel's driver is not enough.",
            "install Intel's compute runtime, 26.18 or later (packages libze-intel-gpu1, libze1, intel-opencl-icd)",
            "intel/compute-runtime", _no_runtime,
        ),
        Row(
            "host.compiler", "warn", "os.compiler",
            "g++ was not found",
            "torch's inductor and our launch library for these cards compile small C++ files at the first start.",
            "sudo apt install g++ (another distribution: its gcc-c++)",
            "PyTorch inductor", lambda context: context.xpu and context.os.compiler is False,
        ),
        Row(
            "host.iommu", "warn", "os.iommu",
            "the IOMMU translates",
            "Peer traffic over PCIe then takes the way through the root complex, is refused, or hangs.",
            "boot with intel_iommu=off (AMD: amd_iommu=off) or iommu=pt, ACS redirect off",
            "intel/compute-runtime#935; intel/llm-scaler documents", _iommu,
        ),
        Row(
            "host.ram", "warn", "os.ram_bytes",
            "{ram} GiB of RAM and {swap} GiB of swap for {device} GiB on the cards",
            "The loader passes the weights through host memory, and the driver's limits follow host memory as well.",
            "add swap until RAM + swap exceeds the cards' memory",
            "intel/llm-scaler#672; B70 field notes 3", _ram,
        ),
    ),
)  # fmt: skip
