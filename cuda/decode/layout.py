"""The order "sm90_mma" of 4-bit weights: same tensors, same shapes, bytes moved so that a lane's load is its fragment.

512 bytes hold 8 rows x 128 k. Lane 4g + t of a warp owns 16 of them, four 32-bit words of row g; word j holds the 8
values k = 32j + 8t .. 32j + 8t + 7, value 2i in nibble i and value 2i + 1 in nibble 4 + i. W13 alternates: for each
128 k, 8 gate rows and then the 8 up rows that go with them (not gated: rows 0-7 and 8-15 of 16). W2 is 8 rows after 8
rows. Scales: W13 [unit][group][row of 8][gate, up], W2 [8 rows][group][row]. Nibbles are u4 (s4 is converted).

The conversion goes an expert at a time, in place, so a layer needs one expert's bytes of room.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.ops import checks

NAME = "sm90_mma"
CANONICAL = "n_major"
_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble -> value
_VALUES = (0, 4, 1, 5, 2, 6, 3, 7)  # value -> nibble


def pack(weights: Int4MoeWeights) -> Int4MoeWeights:
    """Canonical -> sm90_mma, in the same storage, an expert at a time. The old value is void. Raises BadArgument."""
    checks.require(weights.layout == CANONICAL, "weights.layout", weights.layout, CANONICAL)
    return _walk(weights.as_nibble("u4"), NAME, pack_rows, pack_scales)


def unpack(weights: Int4MoeWeights) -> Int4MoeWeights:
    """sm90_mma -> canonical, in the same storage: the inverse of `pack`."""
    checks.require(weights.layout == NAME, "weights.layout", weights.layout, NAME)
    return _walk(weights, CANONICAL, unpack_rows, unpack_scales)


def _walk(weights: Int4MoeWeights, layout: str, rows, scales) -> Int4MoeWeights:
    for name in ("hidden_size", "intermediate_size"):
        size = getattr(weights, name)
        checks.require(size % 128 == 0, name, size, f"a multiple of 128 for layout {NAME}")
    first = "gated" if weights.gated else "plain"
    for expert in range(weights.num_experts):
        for tensor, move, kind in (
            (weights.w13, rows, first), (weights.w2, rows, "single"),
            (weights.w13_scale, scales, first), (weights.w2_scale, scales, "single"),
        ):  # fmt: skip
            tensor[expert].copy_(move(tensor[expert].clone(), kind))
    return replace(weights, layout=layout)


def _row_order(rows: int, kind: str) -> tuple[int, ...]:
    """View of the rows as (unit, half of the unit, row of 8), as a shape, before any permutation."""
    return {"gated": (2, rows // 16, 8), "plain": (rows // 16, 2, 8), "single": (rows // 8, 1, 8)}[kind]


def _to_units(view: torch.Tensor, kind: str) -> torch.Tensor:
    """(gate/up, unit, ...) -> (unit, gate/up, ...); nothing to do for the others."""
    return view.transpose(0, 1) if kind == "gated" else view


def pack_rows(packed: torch.Tensor, kind: str) -> torch.Tensor:
    """uint8 [N, K/2] of one expert -> the same shape in the new order. kind: gated | plain | single."""
    rows, half = packed.shape
    values = torch.stack((packed & 15, packed >> 4), dim=-1)
    # unit, half, g, block, j, t, value
    values = _to_units(values.view(*_row_order(rows, kind), half // 64, 4, 4, 8), kind)
    values = values[..., list(_NIBBLES)].permute(0, 3, 1, 2, 5, 4, 6)  # unit, block, half, g, t, j, nibble
    values = values.reshape(-1, 2)
    return (values[:, 0] | (values[:, 1] << 4)).view(rows, half)


def unpack_rows(packed: torch.Tensor, kind: str) -> torch.Tensor:
    """The inverse of pack_rows."""
    rows, half = packed.shape
    units, pair, _ = _packed_shape(rows, kind)
    values = torch.stack((packed & 15, packed >> 4), dim=-1).view(units, half // 64, pair, 8, 4, 4, 8)
    values = values[..., list(_VALUES)].permute(0, 2, 3, 1, 5, 4, 6)  # unit, half, g, block, j, t, value
    values = _to_units(values, kind).reshape(-1, 2)
    return (values[:, 0] | (values[:, 1] << 4)).view(rows, half)


def _packed_shape(rows: int, kind: str) -> tuple[int, int, int]:
    """(units, halves, 8) of the packed order."""
    return (rows // 8, 1, 8) if kind == "single" else (rows // 16, 2, 8)


def pack_scales(scale: torch.Tensor, kind: str) -> torch.Tensor:
    """[N, groups] of one expert -> the same shape in the new order."""
    rows, groups = scale.shape
    view = _to_units(scale.view(*_row_order(rows, kind), groups), kind)
    return view.permute(0, 3, 2, 1).reshape(rows, groups)


def unpack_scales(scale: torch.Tensor, kind: str) -> torch.Tensor:
    """The inverse of pack_scales."""
    rows, groups = scale.shape
    units, pair, _ = _packed_shape(rows, kind)
    view = scale.view(units, groups, 8, pair).permute(0, 3, 2, 1)
    return _to_units(view, kind).reshape(rows, groups)
