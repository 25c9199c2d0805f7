"""The packed order of 4-bit weights: a bijection, in place, and what u4.cuh says it is."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from xpu_moe.cuda.decode import layout
from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.ops.checks import BadArgument

NAMES = ("w13", "w13_scale", "w2", "w2_scale")


def weights(gated: bool, group: int, nibble: str = "u4", hidden: int = 256, inter: int = 128) -> Int4MoeWeights:
    draw = torch.Generator().manual_seed(group)
    rows = inter * (2 if gated else 1)

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)

    return Int4MoeWeights(
        codes(2, rows, hidden // 2), torch.rand(2, rows, hidden // group, generator=draw).half(),
        codes(2, hidden, inter // 2), torch.rand(2, hidden, inter // group, generator=draw).half(),
        nibble, group, gated=gated,
    )  # fmt: skip


def copy(of: Int4MoeWeights) -> Int4MoeWeights:
    return dataclasses.replace(of, **{name: getattr(of, name).clone() for name in NAMES})


def value(packed: torch.Tensor, row: int, k: int) -> int:
    byte = int(packed[row, k // 2])
    return byte >> 4 if k % 2 else byte & 15


@pytest.mark.parametrize("gated", (True, False))
@pytest.mark.parametrize("group", (32, 64, 128))
def test_pack_is_in_place_and_unpack_gives_everything_back(gated, group):
    given = weights(gated, group)
    kept, places = copy(given), [getattr(given, name).data_ptr() for name in NAMES]
    packed = layout.pack(given)
    assert packed.layout == "sm90_mma" and packed.nbytes == kept.nbytes
    assert [getattr(packed, name).data_ptr() for name in NAMES] == places
    assert not torch.equal(packed.w13, kept.w13) and not torch.equal(packed.w2, kept.w2)
    back = layout.unpack(packed)
    assert back.layout == "n_major"
    assert all(torch.equal(getattr(back, name), getattr(kept, name)) for name in NAMES)


@pytest.mark.parametrize("gated", (True, False))
def test_every_nibble_lies_where_the_kernel_looks(gated):
    """Address arithmetic of u4.cuh, written out: 512 bytes = 8 rows x 128 k, lane 4g + t, word j, pair i."""
    kept = weights(gated, 128)
    packed = layout.pack(copy(kept))
    raw = packed.w13[1].flatten().view(torch.int32)
    for unit, block, half, g, t, j in ((0, 0, 0, 0, 0, 0), (3, 1, 1, 5, 2, 3), (7, 0, 1, 7, 3, 1), (2, 1, 0, 4, 1, 2)):
        word = int(raw[((unit * 2 + block) * 2 + half) * 128 + (g * 4 + t) * 4 + j]) & 0xFFFFFFFF
        row = half * 128 + unit * 8 + g if gated else unit * 16 + half * 8 + g
        for i in range(4):
            k = block * 128 + 32 * j + 8 * t + 2 * i
            assert (word >> (4 * i)) & 15 == value(kept.w13[1], row, k)
            assert (word >> (16 + 4 * i)) & 15 == value(kept.w13[1], row, k + 1)
    raw = packed.w2[0].flatten().view(torch.int32)
    word = int(raw[5 * 128 + (6 * 4 + 1) * 4 + 2]) & 0xFFFFFFFF
    assert (word >> 12) & 15 == value(kept.w2[0], 5 * 8 + 6, 32 * 2 + 8 * 1 + 2 * 3)


def test_scales_lie_beside_the_rows_that_share_a_lane():
    kept = weights(True, 64)
    packed = layout.pack(copy(kept))
    flat = packed.w13_scale[1].flatten()
    unit, group, g = 5, 3, 6
    at = ((unit * 4 + group) * 8 + g) * 2
    assert flat[at] == kept.w13_scale[1, unit * 8 + g, group]
    assert flat[at + 1] == kept.w13_scale[1, 128 + unit * 8 + g, group]
    assert packed.w2_scale[0].flatten()[(3 * 2 + 1) * 8 + 2] == kept.w2_scale[0, 3 * 8 + 2, 1]


def test_signed_nibbles_become_unsigned():
    signed = weights(True, 128, "s4")
    flipped = (copy(signed).w13 ^ 0x88).clone()
    back = layout.unpack(layout.pack(copy(signed)))
    assert back.nibble == "u4" and torch.equal(back.w13, flipped)


def test_sizes_and_orders_that_it_cannot_pack_are_named():
    with pytest.raises(BadArgument, match="intermediate_size: got 64, wanted a multiple of 128"):
        layout.pack(weights(True, 64, inter=64))
    packed = layout.pack(weights(True, 128))
    with pytest.raises(BadArgument, match="layout: got sm90_mma, wanted n_major"):
        layout.pack(packed)
