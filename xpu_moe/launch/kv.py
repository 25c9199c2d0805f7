"""KV bytes and context length on a card of a known kind and on a CPU, where the user named none: from the plan room."""

from __future__ import annotations

from collections.abc import Mapping

from xpu_moe.launch import cpu_kv
from xpu_moe.launch.detect import Found
from xpu_moe.launch.model import Model
from xpu_moe.launch.plan import pairs
from xpu_moe.launch.settings import BY_NAME, Setting
from xpu_moe.plan.cards import Card, card_of
from xpu_moe.plan.checkpoint import BadCheckpoint, read
from xpu_moe.plan.memory import MemoryPlan, Request, plan_memory
from xpu_moe.plan.shapes import shapes_of
from xpu_moe.plan.weights import weights

_SEQUENCES, _TOKENS, _BLOCK = 8, 1024, 64
_CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"  # GiB; vLLM takes it before the flag
_SHARE = "--gpu-memory-utilization"  # on a CPU: of its memory


def fill(
    chosen: dict[str, Setting],
    device: Found,
    model: Model,
    graph: bool,
    environ: Mapping[str, str],
    extra: tuple[str, ...] = (),
) -> tuple[dict[str, Setting], str]:
    """Settings with kv_cache_memory_bytes (and max_model_len) filled in on Intel cards and on a CPU, and a note.

    On other cards vLLM measures what is left by itself. A plan that does not fit is left as it is: the preflight says
    so. `extra`: the user's own vLLM arguments.
    """
    if device.kind == "cpu":
        own = chosen["kv_cache_memory_bytes"].value or environ.get(_CPU_SPACE) or _SHARE in dict(pairs(extra))
        return (chosen, "") if own else cpu_kv.fill(chosen, model)
    ids = chosen_ids(device, environ)
    card = card_of(ids[0], None) if device.kind == "xpu" and ids else None
    if card is None or chosen["kv_cache_memory_bytes"].value:
        return chosen, ""
    found = planned(chosen, card, model, graph)
    if found is None or not found.fits:
        return chosen, f"KV plan for a {card.key}: {found.why}" if found else ""
    origin = f"plan for a {card.key}"
    filled = dict(chosen)
    filled["kv_cache_memory_bytes"] = Setting(BY_NAME["kv_cache_memory_bytes"], found.kv_bytes, origin)
    if not chosen["max_model_len"].value:
        filled["max_model_len"] = Setting(BY_NAME["max_model_len"], found.max_model_len, origin)
    return filled, f"KV plan for a {card.key}: {found.kv_tokens} tokens in {found.kv_bytes / 2**30:.2f} GiB a card"


def chosen_ids(device: Found, environ: Mapping[str, str]) -> tuple[str, ...]:
    """PCI ids of the cards that ZE_AFFINITY_MASK leaves (the preflight speaks about a mask that fits none)."""
    roots = [part.strip().partition(".")[0] for part in environ.get("ZE_AFFINITY_MASK", "").split(",")]
    numbers = [int(root) for root in roots if root.isascii() and root.isdigit()]
    return tuple(device.ids[number] for number in numbers if number < len(device.ids)) or device.ids


def planned(chosen: dict[str, Setting], card: Card, model: Model, graph: bool) -> MemoryPlan | None:
    """The plan room's answer; None where the checkpoint tells too little."""
    try:
        checkpoint = read(model.path)
        shapes = shapes_of(checkpoint.config, checkpoint.quantization)
        if shapes is None:
            return None
        asked = Request(
            tp=chosen["tp"].value,
            pp=chosen["pp"].value,
            max_model_len=chosen["max_model_len"].value,
            max_num_batched_tokens=chosen["max_batched_tokens"].value or _TOKENS,
            max_num_seqs=chosen["max_num_seqs"].value or _SEQUENCES,
            block_size=chosen["block_size"].value or _BLOCK,
            kv_dtype=chosen["kv_cache_dtype"].value or "auto",
            graph=graph,
        )
        found = weights(checkpoint, shapes, asked.tp, asked.pp)
        return plan_memory(shapes, found.parts, card, asked, found.source)
    except (BadCheckpoint, ValueError, OSError):
        return None
