"""The cards: BAR, link, firmware, display, mixture, and whether the model fits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from xpu_moe.doctor.facts import HELD, Gpu
from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.rules.splits import tp_problem
from xpu_moe.doctor.versions import within

GIB = 1 << 30
_TIGHT = 0.8  # share of a card that weights take before a display matters
_SLACK = 512 << 20  # contexts, kernels and one block of KV: the least beside the weights
# GuC firmware that is implicated in engine resets (vllm#55425, hotschmoe/b70_ai_things)
_BAD_GUC = (("==70.58", "70.72.1 or 70.54.0, or kernel 7.1, cured reports"),)


def _intel(context: Context) -> Iterator[Gpu]:
    if context.device in ("xpu", None):
        yield from (gpu for gpu in context.cards if gpu.runtime != "cuda")


def _hit(gpu: Gpu, **values: Any) -> dict[str, Any]:
    return {"at": gpu.place, "name": gpu.name or gpu.device_id or f"card {gpu.place}", **values}


def _bar(context: Context) -> list[dict[str, Any]]:
    hits = []
    for gpu in _intel(context):
        if gpu.bar_bytes is not None and gpu.memory_bytes and gpu.bar_bytes < gpu.memory_bytes * 0.95:
            hits.append(_hit(gpu, bar=gpu.bar_bytes >> 20, memory=gpu.memory_bytes >> 20))
    return hits


def _link(context: Context, fact: str) -> list[dict[str, Any]]:
    hits = []
    for gpu in context.cards if context.several else ():
        narrow = gpu.link_width is not None and gpu.link_width <= 4
        slow = gpu.link_gts is not None and gpu.link_gts < 8
        if narrow if fact == "link_width" else slow and not narrow:
            hits.append(_hit(gpu, gts=gpu.link_gts or "?", width=gpu.link_width or "?"))
    return hits


def _narrow(context: Context) -> list[dict[str, Any]]:
    return _link(context, "link_width")


def _slow(context: Context) -> list[dict[str, Any]]:
    return _link(context, "link_gts")


def _guc(context: Context) -> list[dict[str, Any]]:
    return [
        _hit(gpu, guc=gpu.guc, cure=cure)
        for gpu in _intel(context)
        for ranges, cure in _BAD_GUC
        if within(gpu.guc, ranges)
    ]


def _driverless(context: Context) -> list[dict[str, Any]]:
    """Cards that no kernel driver holds, or one that keeps them for a virtual machine: all (one finding), or some."""
    planned, cards = context.plan.device, context.facts.present or ()
    if planned:
        cards = tuple(gpu for gpu in cards if planned == ("cuda" if gpu.runtime == "cuda" else "xpu"))
    idle = [_hit(gpu, driver=HELD[gpu.driver], fix=_bind(gpu)) for gpu in cards if gpu.driver in HELD]
    if idle and len(idle) == len(cards):
        return [{**idle[0], "about": "gpus", "name": ", ".join(sorted({hit["name"] for hit in idle}))}]
    severity = "error" if (context.facts.world or 0) > len(cards) - len(idle) else "warn"
    return [{**hit, "about": f"gpus[{hit['at']}].driver", "severity": severity} for hit in idle]


def _bind(gpu: Gpu) -> str:
    """What gives the card to its driver."""
    if gpu.driver != "vfio-pci":
        return "sudo modprobe xe, then dmesg | grep -i xe; a B70 wants kernel 6.17 or later (NVIDIA: nvidia-smi)"
    told = re.fullmatch(r"[0-9a-fA-F:.]{7,16}", gpu.pci or "")  # facts may be a stranger's
    pci, driver = told.group() if told else "0000:BUS:00.0", "nvidia" if gpu.runtime == "cuda" else "xe"
    return (
        f"echo {pci} | sudo tee /sys/bus/pci/drivers/vfio-pci/unbind; echo {pci} | sudo tee "
        f"/sys/bus/pci/drivers/{driver}/bind; for good: take the card out of vfio-pci.ids (kernel command line, "
        "/etc/modprobe.d)"
    )


def _display(context: Context) -> list[dict[str, Any]]:
    weights, memory = context.weights, context.memory
    tight = bool(weights and memory and weights > memory * _TIGHT)
    several = context.several or (context.facts.plan is None and len(context.cards) > 1)
    severity = "warn" if tight or (weights is None and several) else "info"
    return [_hit(gpu, severity=severity) for gpu in _intel(context) if gpu.display_attached]


def _mixed(context: Context) -> dict[str, Any] | None:
    """Different cards in one group. Integrated ones that the plan leaves out do not count."""
    cards = context.cards
    if not context.several or context.facts.plan is None or len(cards) < 2:
        return None
    kinds = {gpu.device_id for gpu in cards if gpu.device_id}
    sizes = {round((gpu.memory_bytes or 0) / GIB) for gpu in cards if gpu.memory_bytes}
    if len(kinds) < 2 and len(sizes) < 2:
        return None
    names = sorted({gpu.name or gpu.device_id or "?" for gpu in cards})
    return {"names": ", ".join(names)}


def _too_small(context: Context) -> dict[str, Any] | None:
    weights, least, memory = context.weights, context.weights_least, context.memory
    if weights is None or least is None or memory is None or context.device == "cpu" or weights + _SLACK <= memory:
        return None
    severity = "error" if least + _SLACK > memory else "warn"
    said = {"weights": f"{weights / GIB:.1f}", "memory": f"{memory / GIB:.1f}"}
    return {"severity": severity, **said, "fix": _room(context, weights)}


def _room(context: Context, weights: int) -> str:
    """What the cards of this machine allow instead: others of them, or more of them."""
    gpus, tp = context.facts.gpus or (), context.plan.tp or 1
    sizes = [gpu.memory_bytes or (card.memory_bytes if (card := context.kind(gpu)) else 0) for gpu in gpus]
    large = [str(place) for place, size in enumerate(sizes) if size >= weights + _SLACK]
    if len(large) >= (context.facts.world or 1):
        mask = "CUDA_VISIBLE_DEVICES" if context.cuda else "ZE_AFFINITY_MASK"
        return f"export {mask}={','.join(large[: context.facts.world])} (the cards that are large enough)"
    shapes, parallel_experts = context.shapes, bool(context.plan.enable_expert_parallel)
    for wider in range(tp + 1, len(gpus) // context.stages + 1):
        part = shapes.weights_per_rank(wider, context.stages, parallel_experts).total if shapes else weights
        if part + _SLACK <= min(sizes) and not tp_problem(context, wider):
            return f"--tensor-parallel-size {wider} ({len(gpus)} cards are here)"
    quant = shapes.quant if shapes else None
    bits = 8 if quant and quant.method == "fp8" else 16 if shapes and shapes.moe and quant is None else 0
    if bits and weights * 4.25 / bits + _SLACK <= (context.memory or 0):  # 4 bits and a scale for 128 of them
        return f"take a 4-bit checkpoint (AutoRound, group 128): about {weights * 4.25 / bits / GIB:.0f} GiB a card"
    return "more or larger cards: python -m xpu_moe.plan --model DIR --tp N"


def _gemm(context: Context) -> list[dict[str, Any]]:
    return [_hit(gpu) for gpu in context.facts.gpus or () if gpu.gemm_exact is False]


def _no_fp8(context: Context) -> dict[str, Any] | None:
    """FP8 weights on cards without FP8 arithmetic."""
    quant = context.shapes.quant if context.shapes else None
    cards = [context.kind(gpu) for gpu in context.cards]
    old = [card for card in cards if card and card.capability and card.capability < (8, 9)]
    return {"name": old[0].name_part} if context.cuda and old and quant and quant.method == "fp8" else None


RULE = Rule(
    "card: BAR, firmware, link, display, size, mixture",
    "Properties of the cards themselves.",
    (
        Row(
            "card.driver", "error", "{about}",
            "{name}: {driver}",
            "Without the kernel's driver (xe for Arc B-series) the card cannot be used.",
            "{fix}",
            "Linux kernel, drivers/gpu/drm/xe", _driverless,
        ),
        Row(
            "card.bar", "warn", "gpus[{at}].bar_bytes",
            "{name}: {bar} of {memory} MiB are mapped",
            "Resizable BAR is off: slow loads, no peer access, and on B-series zeInit may fail.",
            "switch on Resizable BAR and above-4G decoding in the firmware setup, CSM off",
            "intel/llm-scaler FAQ", _bar,
        ),
        Row(
            "card.link-width", "warn", "gpus[{at}].link_width",
            "{name}: the link is {gts} GT/s x{width}",
            "x4 or narrower (risers, M.2 adapters, eGPU boxes) costs loading, prefill and every collective.",
            "move the card to a slot of x8 or wider",
            "B70 field notes 11", _narrow,
        ),
        Row(
            "card.link-speed", "warn", "gpus[{at}].link_gts",
            "{name}: the link is {gts} GT/s x{width}",
            "Below 8 GT/s loading, prefill and every collective are slow, and such links are a source of errors.",
            "reseat the card, shorten the riser, set the slot's speed in the firmware setup",
            "B70 field notes 11", _slow,
        ),
        Row(
            "card.guc", "warn", "gpus[{at}].guc",
            "{name}: GuC firmware {guc}",
            "It is implicated in engine resets and CAT errors; {cure}.",
            "update linux-firmware and rebuild the initramfs",
            "vllm-project/vllm#55425", _guc,
        ),
        Row(
            "card.display", "warn", "gpus[{at}].display_attached",
            "{name}: a display is attached",
            "It takes device memory that the model needs; with it the 32K profile does not fit.",
            "move the display to another GPU, or boot with xe.disable_display=1",
            "steveseguin/b70-optimization-lab", _display,
        ),
        Row(
            "card.mixed", "warn", "gpus",
            "different cards in one group: {names}",
            "The smallest sizes weights and KV for all, and the collective topology is unproved.",
            "choose equal cards with ZE_AFFINITY_MASK (CUDA_VISIBLE_DEVICES)",
            "B70 field notes 11", _mixed,
        ),
        Row(
            "card.too-small", "error", "gpus",
            "weights of {weights} GiB a rank, cards of {memory} GiB",
            "The model does not fit at this parallel size.",
            "{fix}",
            "B70 field notes 3; weights from config.json", _too_small, ("plan.tp", "model.quantization_config"),
        ),
        Row(
            "card.gemm", "error", "gpus[{at}].gemm_exact",
            "{name}: a small exact product came out wrong",
            "The card, its driver or the compiler computes wrong numbers; nothing it says can be trusted.",
            "update compute-runtime; try another card",
            "compute-runtime#1001; xccl#5220", _gemm,
        ),
        Row(
            "card.no-fp8", "warn", "model.quantization_config",
            "FP8 weights on {name}, which has no FP8 arithmetic",
            "Below compute capability 8.9 only weight-only Marlin kernels serve, and Triton's e4m3 refuses.",
            "take a 4-bit or 16-bit checkpoint",
            "B70 field notes 12", _no_fp8,
        ),
    ),
)  # fmt: skip
