"""Can the model be cut into tensor-parallel slices? Arithmetic of config.json alone."""

from __future__ import annotations

from xpu_moe.plan.shapes import Shapes

_FINER = 64  # vLLM from 0.32 on splits the blocks of FP8 experts into finer ones, of this many columns


def problem(shapes: Shapes, tp: int, *, expert_parallel: bool = False, finer: bool = False) -> str:
    """Why the model cannot be cut into `tp` slices; "" where it can.

    `expert_parallel`: experts stay whole. `finer`: the vLLM in use splits FP8 blocks (0.32 and later).
    """
    if tp == 1:
        return ""
    if shapes.heads % tp:
        return f"{shapes.heads} attention heads do not divide by {tp}"
    if not shapes.latent and shapes.kv_heads % tp and tp % shapes.kv_heads:
        return f"{shapes.kv_heads} KV heads divide neither by {tp} nor into it"
    quant = shapes.quant
    multiple = quant.slice_multiple if quant else 1
    if shapes.moe and not expert_parallel:
        inner = shapes.moe_intermediate
        if inner % tp:
            return f"the experts' {inner} columns do not divide by {tp}"
        if (inner // tp) % multiple and not (finer and _finer(shapes, tp)):
            return f"{inner} / {tp} = {inner // tp} columns of an expert are no multiple of the block of {multiple}"
    dense = shapes.intermediate if shapes.dense_layers else 0
    if dense and (dense % tp or (dense // tp) % multiple):
        return f"{dense} / {tp} columns of the MLP are no multiple of the block of {multiple}"
    width = shapes.kv_heads_per_rank(tp) * shapes.head_dim
    if quant and quant.block and width % quant.block[0]:
        return f"{width} rows of K on a rank are no multiple of the block of {quant.block[0]}"
    return ""


def needs_finer(shapes: Shapes, tp: int, *, expert_parallel: bool = False) -> bool:
    """Whether a vLLM that splits FP8 blocks (0.32 and later) is what makes this cut possible."""
    asked = (problem(shapes, tp, expert_parallel=expert_parallel, finer=finer) for finer in (False, True))
    return bool(next(asked)) and not next(asked)


def possible(shapes: Shapes, *, expert_parallel: bool = False) -> list[int]:
    """The sizes that work, 1 included, up to one attention head a rank."""
    sizes = (n for n in range(1, min(shapes.heads, 1024) + 1) if shapes.heads % n == 0)
    return [n for n in sizes if not problem(shapes, n, expert_parallel=expert_parallel, finer=True)]


def _finer(shapes: Shapes, tp: int) -> bool:
    block = shapes.quant.block if shapes.quant else None
    return block is not None and (shapes.moe_intermediate // tp) % _FINER == 0
