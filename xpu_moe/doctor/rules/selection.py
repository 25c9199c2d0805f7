"""The set of devices against the plan: masks, selectors, counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.rules.splits import tp_problem
from xpu_moe.doctor.text import is_number, shown

Hit = dict[str, Any]
_BACKENDS = ("level_zero", "opencl", "cuda", "hip", "native_cpu", "*")


def _entries(value: str) -> list[str]:
    return [part for part in value.replace(" ", "").split(",") if part]


def _total(context: Context) -> int | None:
    return len(context.facts.gpus) if context.facts.gpus else None


def _mask(context: Context, name: str) -> Hit | None:
    """A mask that shows fewer devices than the plan uses, twice the same, or some that are not there."""
    value, world = context.facts.value(name), context.facts.world
    if value is None:
        return None
    parts = _entries(value)
    hit = {"name": name, "value": shown(value) or "(empty)", "world": world}
    if not parts and name == "ZE_AFFINITY_MASK":
        return None  # empty counts as unset there
    roots = [part.split(".")[0] for part in parts]
    uuids = name == "CUDA_VISIBLE_DEVICES" and any(part.upper().startswith(("GPU-", "MIG-")) for part in parts)
    if not uuids and not all(is_number(root) for root in roots):
        return {**hit, "says": "It is a list of device numbers."}
    if len(set(parts)) < len(parts):
        return {**hit, "says": "A device stands in it twice."}
    total = _total(context)
    if total is not None and not uuids and any(int(root) >= total for root in roots):
        return {**hit, "says": f"The machine has {total} cards, numbered from 0."}
    beyond = world is not None and total is not None and world > total  # then the plan is at fault, not the mask
    if world is not None and len(set(roots)) < world and not beyond:
        return {**hit, "says": f"The plan needs {world} cards (tp x pp), it shows {len(set(roots))}."}
    return None


def _ze_mask(context: Context) -> Hit | None:
    return _mask(context, "ZE_AFFINITY_MASK") if context.xpu else None


def _cuda_mask(context: Context) -> Hit | None:
    return _mask(context, "CUDA_VISIBLE_DEVICES") if context.cuda else None


def _visible(context: Context) -> int | None:
    """How many cards the mask leaves, which the selector then counts from 0."""
    mask = context.facts.value("ZE_AFFINITY_MASK")
    parts = _entries(mask) if mask else []
    return len(set(parts)) if parts else _total(context)


def _selector(context: Context) -> Hit | None:
    value = context.facts.value("ONEAPI_DEVICE_SELECTOR")
    if not context.xpu or value is None:
        return None
    refused = _ze_mask(context) is not None  # then what follows from the mask is its fault, not the selector's
    world, total = context.facts.world, _total(context)
    if refused or (world is not None and total is not None and world > total):
        world = None
    says = selected(value, None if refused else _visible(context), world)
    return {"value": shown(value) or "(empty)", "says": says} if says else None


def selected(value: str, visible: int | None, world: int | None) -> str:
    """What is wrong with a selector, "" when nothing is.

    `backend:devices` terms are joined by `;`, devices by `,`; `!` takes away; a device is `*`, a type or a number.
    """
    terms = [term for term in value.replace(" ", "").lower().split(";") if term]
    chosen: set[str] = set()
    every = False
    taking = [term for term in terms if not term.startswith("!")]
    away = _taken_away(term[1:] for term in terms if term.startswith("!"))
    if not terms:
        return "It is empty: no device is left."
    for term in taking:
        backend, colon, devices = term.partition(":")
        if not colon:
            return f"{shown(term)} has no backend: a term is level_zero:0,1 or level_zero:gpu."
        if backend not in _BACKENDS:
            return f"{shown(backend)} is no backend; the one for these cards is level_zero."
        for device in devices.split(","):
            if device in ("*", "gpu"):
                every = every or backend in ("level_zero", "*")
            elif is_number(device.split(".")[0]):
                if backend in ("level_zero", "*"):
                    chosen.add(device.split(".")[0])
            elif device not in ("cpu", "fpga", "acc"):
                return f"{shown(device) or '(nothing)'} is no device: write a number, gpu or *."
    if (taking and not every and not chosen) or away is None:
        return "It leaves no Level Zero GPU."
    if every or not taking:
        left = None if visible is None else visible - sum(int(device) < visible for device in away)
        short = left is not None and world is not None and left < world
        return f"The plan needs {world} cards (tp x pp), it leaves {left}." if short else ""
    beyond = sorted(int(device) for device in chosen if visible is not None and int(device) >= visible)
    if beyond:
        return f"It names device {beyond[0]}; {visible} are visible, numbered from 0 after ZE_AFFINITY_MASK."
    if world is not None and len(chosen) < world:
        return f"The plan needs {world} cards (tp x pp), it leaves {len(chosen)}."
    return ""


def _taken_away(terms: Iterable[str]) -> set[str] | None:
    """Numbers of Level Zero devices that `!` terms exclude; None when they exclude all."""
    gone: set[str] = set()
    for term in terms:
        backend, _, devices = term.partition(":")
        if backend in ("level_zero", "*"):
            parts = devices.split(",")
            if "*" in parts or "gpu" in parts:
                return None
            gone.update(part for part in parts if is_number(part))
    return gone


def _too_few(context: Context) -> Hit | None:
    """More ranks than cards, with no mask to blame."""
    total, world = _total(context), context.facts.world
    if total is None or world is None or world <= total or context.device == "cpu":
        return None
    good = [n for n in range(1, total + 1) if not tp_problem(context, n)]
    return {
        "field": "tp" if (context.plan.tp or 1) > total else "pp", "world": world, "total": total,
        "good": ", ".join(map(str, good)), "look": "nvidia-smi" if context.cuda else "lspci -nn | grep -i 8086:e2",
    }  # fmt: skip


def _none(context: Context) -> Hit | None:
    wanted = context.facts.plan is not None and context.plan.device in ("xpu", "cuda")
    return {"device": context.plan.device} if wanted and context.facts.gpus == () else None


def _other_vendor(context: Context) -> Hit | None:
    named = [gpu for gpu in context.facts.present or () if gpu.name]
    if not named or context.plan.device not in ("xpu", "cuda"):
        return None
    wrong = all(gpu.runtime not in (context.plan.device, None) for gpu in named)
    return {"device": context.plan.device, "name": named[0].name} if wrong else None


RULE = Rule(
    "device set against the plan",
    "A mask or selector that leaves fewer cards than the plan uses, or none.",
    (
        Row(
            "selection.ze-mask", "error", "env.ZE_AFFINITY_MASK",
            "ZE_AFFINITY_MASK={value} does not fit the plan",
            "{says}",
            "export ZE_AFFINITY_MASK with the numbers of all planned cards, or unset it",
            "uxlfoundation/oneCCL#217; Level Zero documentation", _ze_mask,
        ),
        Row(
            "selection.selector", "error", "env.ONEAPI_DEVICE_SELECTOR",
            "ONEAPI_DEVICE_SELECTOR={value} does not fit",
            "{says}",
            "export ONEAPI_DEVICE_SELECTOR=level_zero:gpu, or unset it",
            "intel/llvm documentation, environment variables", _selector,
        ),
        Row(
            "selection.cuda-mask", "error", "env.CUDA_VISIBLE_DEVICES",
            "CUDA_VISIBLE_DEVICES={value} does not fit the plan",
            "{says}",
            "export CUDA_VISIBLE_DEVICES with the numbers of all planned cards, or unset it",
            "CUDA documentation", _cuda_mask,
        ),
        Row(
            "selection.too-few", "error", "plan.{field}",
            "{world} ranks, {total} cards",
            "Every rank needs a card of its own.",
            "is one missing? {look}; dmesg. Else --tensor-parallel-size (x pipeline), possible here: {good}",
            "B70 field notes 5", _too_few,
        ),
        Row(
            "selection.none", "error", "gpus",
            "the plan wants {device}, and no card is visible",
            "None on the PCI bus: seat, power, above-4G decoding; or kept from this container or virtual machine.",
            "lspci -nn | grep -iE '8086:e2|nvidia'; above-4G decoding and resizable BAR on in the firmware setup; "
            "ls -l /dev/dri; add --device /dev/dri to the container",
            "B70 field notes 11", _none,
        ),
        Row(
            "selection.vendor", "error", "plan.device",
            "the plan is for {device}, the card is {name}",
            "The build of torch and vLLM must be the card's.",
            "leave --device away",
            "device detection", _other_vendor,
        ),
    ),
)  # fmt: skip
