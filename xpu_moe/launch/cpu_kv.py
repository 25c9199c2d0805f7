"""KV bytes on a CPU, where vLLM would take 92 % of the memory: a few sequences, in a modest part of what is free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xpu_moe import host_memory
from xpu_moe.launch.model import Model
from xpu_moe.launch.settings import BY_NAME, Setting
from xpu_moe.launch.words import counted
from xpu_moe.plan.checkpoint import BadCheckpoint, read
from xpu_moe.plan.shapes import shapes_of
from xpu_moe.plan.sizes import gib
from xpu_moe.plan.weights import weights

ORIGIN = "plan for the CPU"
_SEQUENCES = 4
_BLOCK = 128  # vLLM's own on a CPU
_NULL_BLOCKS = 1  # vLLM keeps one block that no sequence gets
_PART = 4  # a quarter of what the weights leave: other programs live in this memory too, and so do vLLM's buffers
_MOST = 2  # and one sequence of a length that the user named may take half of it
_NO_LENGTH = 2048  # what vLLM assumes where config.json tells no length


@dataclass(frozen=True)
class Asked:
    """`token`: KV bytes of a token on one rank. `left`: bytes for one rank beside the weights, of `free` bytes."""

    token: int
    block: int
    length: int
    named: bool  # the user said the length, so that it stays
    sequences: int
    left: int
    free: int


@dataclass(frozen=True)
class Answer:
    """`size` bytes on each rank for `sequences` of `length` tokens; 0 with the reason in `why` where nothing fits."""

    size: int
    length: int
    sequences: int
    why: str = ""


def fill(chosen: dict[str, Setting], model: Model, free: int | None = None) -> tuple[dict[str, Setting], str]:
    """Settings with kv_cache_memory_bytes (and max_model_len, where the memory is too small for the model's own), and
    a note. Nothing is filled in where the checkpoint or the system tells too little."""
    asked = ask(chosen, model, host_memory.available() if free is None else free)
    if asked is None:
        return chosen, ""
    found = plan(asked)
    if not found.size:
        return chosen, f"KV plan for the CPU: {found.why}; vLLM is left to take what it finds"
    filled = {**chosen, "kv_cache_memory_bytes": Setting(BY_NAME["kv_cache_memory_bytes"], found.size, ORIGIN)}
    if not asked.named and found.length < asked.length:
        filled["max_model_len"] = Setting(BY_NAME["max_model_len"], found.length, ORIGIN)
    return filled, (
        f"KV plan for the CPU: {found.sequences} x {counted(found.length, 'token')} in {gib(found.size)} a rank, "
        f"{gib(asked.free)} of memory are free"
    )


def ask(chosen: Mapping[str, Setting], model: Model, free: int) -> Asked | None:
    """What the plan needs to know; None where the checkpoint or the system does not tell it."""
    try:
        checkpoint = read(model.path)
        shapes = shapes_of(checkpoint.config, checkpoint.quantization)
        if shapes is None or not free:
            return None
        tp, pp = chosen["tp"].value, chosen["pp"].value
        held = weights(checkpoint, shapes, tp, pp).parts.total
        token = shapes.kv_bytes_per_token(tp, pp, _kv_type(chosen))
    except (BadCheckpoint, ValueError, OSError):
        return None
    named = chosen["max_model_len"].value
    return Asked(
        token=token,
        block=chosen["block_size"].value or _BLOCK,
        length=named or shapes.max_positions or _NO_LENGTH,
        named=bool(named),
        sequences=min(chosen["max_num_seqs"].value or _SEQUENCES, _SEQUENCES),
        left=free // (tp * pp) - held,  # all ranks live in one memory
        free=free,
    )


def plan(asked: Asked) -> Answer:
    """A few sequences in a modest part of what is left; fewer, then a shorter one, where that part is too small."""
    block = asked.block * asked.token
    blocks = max(0, asked.left // _PART // block - _NULL_BLOCKS)
    each = -(-asked.length // asked.block)
    if blocks >= each:
        sequences = min(asked.sequences, blocks // each)
        return Answer((sequences * each + _NULL_BLOCKS) * block, asked.length, sequences)
    if asked.named:
        size = (each + _NULL_BLOCKS) * block
        if size <= asked.left // _MOST:
            return Answer(size, asked.length, 1)
    elif blocks:
        return Answer((blocks + _NULL_BLOCKS) * block, blocks * asked.block, 1)
    left = f"the weights leave {gib(max(0, asked.left))} a rank of the {gib(asked.free)} that are free"
    most = max(0, asked.left // _MOST // block - _NULL_BLOCKS) * asked.block
    advice = f" (--max-model-len {most} would fit)" if asked.named and most else ""
    return Answer(0, asked.length, 0, f"{left}, too little for {counted(asked.length, 'token')}{advice}")


def _kv_type(chosen: Mapping[str, Setting]) -> str:
    """The KV cache has the activations' type unless it was given one."""
    given = chosen["kv_cache_dtype"].value or "auto"
    dtype = chosen["dtype"].value if given == "auto" else given
    return "float32" if dtype == "float" else str(dtype)
