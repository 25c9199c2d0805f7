"""Random weights under the released checkpoints' tensor names, and their dequantised bf16 twins."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from xpu_moe.demo.shape import FP8_BLOCK, Shape
from xpu_moe.formats import gptq

Tensors = dict[str, torch.Tensor]


def tensors(shape: Shape, vocab_size: int) -> Iterator[tuple[Tensors, Tensors]]:
    """Yields (tensors on disk, the same in bf16), one module at a time, so that no more than one lies in memory."""
    draw = torch.Generator().manual_seed(shape.seed)

    def normal(*size: int, scale: float | None = None) -> torch.Tensor:
        return torch.randn(size, generator=draw) * (size[-1] ** -0.5 if scale is None else scale)

    def plain(name: str, value: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensors, Tensors]:
        stored = {name: value.to(dtype).contiguous()}
        return stored, stored

    def near_one(name: str, size: int) -> tuple[Tensors, Tensors]:
        return plain(f"{name}.weight", 1 + normal(size, scale=0.1))

    hidden, width, kv_width = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = "none" if shape.experts_only else shape.quant
    yield plain("model.embed_tokens.weight", normal(vocab_size, hidden, scale=1.0))
    yield plain("lm_head.weight", normal(vocab_size, hidden))
    yield plain("model.norm.weight", torch.ones(hidden))
    for layer in range(shape.layers):
        base = f"model.layers.{layer}"
        yield near_one(f"{base}.input_layernorm", hidden)
        yield near_one(f"{base}.post_attention_layernorm", hidden)
        for part, rows, columns in (
            ("q", width, hidden), ("k", kv_width, hidden), ("v", kv_width, hidden), ("o", hidden, width),
        ):  # fmt: skip
            yield linear(f"{base}.self_attn.{part}_proj", normal(rows, columns), attention, shape)
        yield near_one(f"{base}.self_attn.q_norm", width)
        yield near_one(f"{base}.self_attn.k_norm", kv_width)
        moe = f"{base}.block_sparse_moe"
        yield plain(f"{moe}.gate.weight", normal(shape.num_experts, hidden))
        yield plain(f"{moe}.e_score_correction_bias", normal(shape.num_experts, scale=0.1), torch.float32)
        for expert in range(shape.num_experts):
            for part, rows, columns in (
                ("w1", shape.intermediate_size, hidden), ("w3", shape.intermediate_size, hidden),
                ("w2", hidden, shape.intermediate_size),
            ):  # fmt: skip
                yield linear(f"{moe}.experts.{expert}.{part}", normal(rows, columns), shape.quant, shape)


def linear(base: str, weight: torch.Tensor, quant: str, shape: Shape) -> tuple[Tensors, Tensors]:
    """One linear [N, K] in the format `quant`, and its bf16 twin."""
    if quant == "none":
        stored = {f"{base}.weight": weight.to(torch.bfloat16)}
        return stored, stored
    if quant == "fp8":
        return _fp8(base, weight)
    rows, scale, exact = gptq.quantize(weight, shape.group_size, shape.scale_bits)
    groups, columns = scale.shape[1], scale.shape[0]
    stored = {
        f"{base}.qweight": gptq.qweight_from_rows(rows),
        f"{base}.scales": scale.t().contiguous(),
        # a symmetric zero is 8, stored minus one in every nibble (GPTQ v1)
        f"{base}.qzeros": torch.full((groups, columns // 8), 0x77777777, dtype=torch.int32),
    }
    if quant == "gptq":
        stored[f"{base}.g_idx"] = (torch.arange(weight.shape[1]) // shape.group_size).to(torch.int32)
    return stored, {f"{base}.weight": exact.to(torch.bfloat16)}


def _fp8(base: str, weight: torch.Tensor) -> tuple[Tensors, Tensors]:
    """e4m3 with one fp32 scale per 128x128 block; `weight_scale_inv` multiplies, in spite of its name."""
    rows, columns = weight.shape
    row_blocks, column_blocks = -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)
    padded = torch.zeros(row_blocks * FP8_BLOCK, column_blocks * FP8_BLOCK)
    padded[:rows, :columns] = weight
    blocks = padded.view(row_blocks, FP8_BLOCK, column_blocks, FP8_BLOCK)
    scale = blocks.abs().amax((1, 3)).clamp(min=1e-6) / torch.finfo(torch.float8_e4m3fn).max
    codes = (blocks / scale[:, None, :, None]).reshape(padded.shape)[:rows, :columns].to(torch.float8_e4m3fn)
    spread = scale.repeat_interleave(FP8_BLOCK, 0)[:rows].repeat_interleave(FP8_BLOCK, 1)[:, :columns]
    stored = {f"{base}.weight": codes.contiguous(), f"{base}.weight_scale_inv": scale.contiguous()}
    return stored, {f"{base}.weight": (codes.float() * spread).to(torch.bfloat16)}
