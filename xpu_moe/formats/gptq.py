"""AutoRound / GPTQ packing <-> canonical rows.

On disk: qweight int32 [K/8, N] (eight k in a word, lowest k in the lowest nibble), scales fp16 [K/group, N], qzeros
int32 [K/group, N/8], g_idx int32 [K]. Both layouts take the same bytes, so a whole stack of experts is converted in its
own storage with one expert of scratch.
"""

from __future__ import annotations

import torch

from xpu_moe.formats.quantization import UnsupportedCheckpoint


def rows_from_qweight(qweight: torch.Tensor) -> torch.Tensor:
    """int32 [K/8, N] -> uint8 [N, K/2], low nibble = even k. A word's four bytes are k pairs in order."""
    words, columns = qweight.shape
    pairs = qweight.contiguous().view(torch.uint8).view(words, columns, 4)
    return pairs.permute(1, 0, 2).reshape(columns, words * 4)


def qweight_from_rows(rows: torch.Tensor) -> torch.Tensor:
    """uint8 [N, K/2] -> int32 [K/8, N], the inverse."""
    columns, half = rows.shape
    return rows.view(columns, half // 4, 4).permute(1, 0, 2).contiguous().view(torch.int32).squeeze(-1)


def stack_in_place(qweight: torch.Tensor) -> torch.Tensor:
    """int32 [E, K/8, N] -> uint8 [E, N, K/2] in the same storage, an expert at a time (scratch: two experts)."""
    if not qweight.is_contiguous():
        raise UnsupportedCheckpoint("qweight: got a strided tensor, wanted a contiguous one to convert in place")
    experts, words, columns = qweight.shape
    rows = qweight.view(torch.uint8).view(experts, columns, words * 4)
    for expert in range(experts):
        rows[expert].copy_(rows_from_qweight(qweight[expert].clone()))
    return rows


def scales_in_place(scales: torch.Tensor) -> torch.Tensor:
    """[E, K/group, N] -> [E, N, K/group] in the same storage, an expert at a time."""
    if not scales.is_contiguous():
        raise UnsupportedCheckpoint("scales: got a strided tensor, wanted a contiguous one to convert in place")
    experts, groups, columns = scales.shape
    turned = scales.view(experts, columns, groups)
    for expert in range(experts):
        # clone, not contiguous(): one group a row is contiguous both ways, and the copy would read what it writes
        turned[expert].copy_(scales[expert].clone().t())
    return turned


def check_symmetric(name: str, qzeros: torch.Tensor, zero_point: int) -> None:
    """Refuse real zero points: every nibble must be `zero_point` (7 in GPTQ v1, 8 in v2)."""
    codes = qzeros.contiguous().view(torch.uint8)
    if bool((codes == zero_point * 0x11).all()):
        return
    values = torch.cat((codes.reshape(-1) & 15, codes.reshape(-1) >> 4))
    odd = values[values != zero_point]
    other = 15 - zero_point
    hint = f"; all are {other}: the other zero-point convention" if bool((values == other).all()) else ""
    raise UnsupportedCheckpoint(
        f"{name}: zero point {int(odd[0])} found, wanted {zero_point} everywhere (symmetric){hint}"
    )


def check_order(name: str, g_idx: torch.Tensor, group_size: int) -> None:
    """Refuse desc_act: g_idx[k] must be k // group_size."""
    wanted = torch.arange(g_idx.numel(), device=g_idx.device, dtype=g_idx.dtype) // group_size
    if not torch.equal(g_idx.reshape(-1), wanted):
        raise UnsupportedCheckpoint(f"{name}: rows are reordered (desc_act), wanted g_idx[k] = k // {group_size}")


def check_shapes(
    base: str, qweight: torch.Tensor, scales: torch.Tensor, rows: int, columns: int, group_size: int
) -> None:
    """Refuse tensors of a [rows, columns] linear (N, K) whose shapes or dtypes are not the format's."""
    for name, tensor, kind, wanted in (
        (f"{base}.qweight", qweight, (torch.int32,), (columns // 8, rows)),
        (f"{base}.scales", scales, (torch.float16, torch.bfloat16, torch.float32), (columns // group_size, rows)),
    ):
        if tuple(tensor.shape) != wanted:
            raise UnsupportedCheckpoint(
                f"{name}: got shape {tuple(tensor.shape)}, wanted {wanted} "
                f"(N={rows}, K={columns}, group_size {group_size})"
            )
        if tensor.dtype not in kind:
            raise UnsupportedCheckpoint(f"{name}: got {tensor.dtype}, wanted {' or '.join(map(str, kind))}")


def quantize(
    weight: torch.Tensor, group_size: int, scale_bits: int = 11
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round-to-nearest symmetric quantisation, for demo checkpoints and tests.

    weight [N, K] -> (rows uint8 [N, K/2] as u4, scales fp16 [N, K/group], dequantised fp32 [N, K]). `scale_bits`
    keeps that many significant bits of each scale: with 4, nibble x scale is exact in bf16.
    """
    columns, depth = weight.shape
    grouped = weight.float().view(columns, depth // group_size, group_size)
    scale = few_bits((grouped.abs().amax(-1) / 7).clamp(min=2.0**-14), scale_bits).to(torch.float16)
    codes = (grouped / scale.float().unsqueeze(-1)).round().clamp(-8, 7)
    nibbles = (codes + 8).to(torch.uint8).view(columns, depth // 2, 2)
    rows = nibbles[..., 0] | (nibbles[..., 1] << 4)
    return rows, scale, (codes * scale.float().unsqueeze(-1)).view(columns, depth)


def few_bits(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Round up to `bits` significant bits."""
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp(torch.ceil(mantissa * 2**bits) / 2**bits, exponent)
