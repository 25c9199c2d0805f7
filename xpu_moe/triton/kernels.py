"""Grouped products of a mixture of experts: routes sorted by expert, two products, a weighted sum. Needs Triton.

    align    count, scan, place: `slots` [tiles * BM] holds route numbers, the routes of an expert in whole tiles
    up       h[route] = act(W13[e] x[token])     one program: a tile of routes, BN columns of I (gate and up together)
    down     y[route] = weight * W2[e] h[route]
    combine  out[token] = sum of y over its top_k routes, in order

Where a route stands in its expert's tiles depends on the order of atomics, its result does not: rows of a product do
not see each other, and the sum over k has a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

INT4, FP8_BLOCK, FP8_TENSOR = 0, 1, 2
_INT4 = tl.constexpr(INT4)
_FP8_BLOCK = tl.constexpr(FP8_BLOCK)


@triton.jit
def count_routes(ids, counts, ranks, routes, E, BLOCK: tl.constexpr):
    """ranks[i] = how many routes of the same expert were counted before; -1 for an id out of range."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.load(ids + i, mask=i < routes, other=-1)
    valid = (e >= 0) & (e < E)
    rank = tl.atomic_add(counts + tl.where(valid, e, 0), 1, mask=valid)
    tl.store(ranks + i, tl.where(valid, rank, -1), mask=i < routes)


@triton.jit
def scan_tiles(counts, tile_end, E, BM: tl.constexpr, EP: tl.constexpr):
    """tile_end[e] = tiles of the experts 0..e."""
    e = tl.arange(0, EP)
    count = tl.load(counts + e, mask=e < E, other=0)
    tl.store(tile_end + e, tl.cumsum((count + BM - 1) // BM, 0), mask=e < E)


@triton.jit
def place_routes(ids, ranks, tile_end, slots, routes, BM: tl.constexpr, BLOCK: tl.constexpr):
    """slots[first slot of the expert + rank] = route."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    rank = tl.load(ranks + i, mask=i < routes, other=-1)
    valid = rank >= 0
    e = tl.load(ids + i, mask=valid, other=0)
    first = tl.load(tile_end + e - 1, mask=valid & (e > 0), other=0) * BM
    tl.store(slots + first + rank, i, mask=valid)


@triton.jit
def _tile_expert(tile_end, tile, E, EP: tl.constexpr):
    """The expert of a tile; E or more where the tile is not used."""
    e = tl.arange(0, EP)
    end = tl.load(tile_end + e, mask=e < E, other=2147483647)
    return tl.sum((end <= tile).to(tl.int32), 0)


@triton.jit
def _columns(BK: tl.constexpr, PACKED: tl.constexpr):
    """Which columns of a tile go with the words as they are read. A packed row of 128 is read in the order of memory
    (16 words in a row, coalesced), so the activations are the ones that change places."""
    kk = tl.arange(0, BK)
    if PACKED and BK == 128:
        word = kk // 8
        kk = 32 * (word % 4) + 8 * (word // 4) + kk % 8
    return kk


@triton.jit
def _u4_words(w, rows, HALVES: tl.constexpr, half, k, BK: tl.constexpr, K: tl.constexpr, PACKED: tl.constexpr):
    """Words (8 values of k each) of the columns k.. of the rows [N] of one matrix: [N, BK / 8] int32. HALVES 2: rows of
    W13 that stand in units of 16; `half` says which half of its unit a row is in (gate or up; or rows 0-7, 8-15)."""
    kw = k // 8 + tl.arange(0, BK // 8)
    if PACKED and BK == 128:
        block = ((rows // 8) * (K // 128) + k // 128) * HALVES + half
        at = (block * 128 + (rows % 8) * 16)[:, None] + tl.arange(0, 16)[None, :]
    elif PACKED:
        unit = rows // 8
        inside = (rows % 8)[:, None] * 16 + (kw % 4)[None, :] * 4 + (kw % 16 // 4)[None, :]
        at = ((unit[:, None] * (K // 128) + (kw // 16)[None, :]) * HALVES + half[:, None]) * 128 + inside
    else:
        at = rows[:, None] * (K // 8) + kw[None, :]
    return tl.load(w + at)


@triton.jit
def _u4_values(
    words, N: tl.constexpr, BK: tl.constexpr, PACKED: tl.constexpr, SIGNED: tl.constexpr, dtype: tl.constexpr
):
    """[N, BK / 8] words -> [N, BK] whole numbers -8..7 in `dtype`."""
    p = tl.arange(0, 8)
    if PACKED:
        shift = (p // 2) * 4 + (p % 2) * 16
    else:
        shift = p * 4
    v = (words[:, :, None] >> shift[None, None, :]) & 15
    if SIGNED:
        v = (v ^ 8) - 8
    else:
        v = v - 8
    return tl.reshape(v, (N, BK)).to(dtype)


@triton.jit
def _product(
    acc, a, w, s, row, half, e, k, ROWS: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, SCHEME: tl.constexpr, HALVES: tl.constexpr, PACKED: tl.constexpr, SIGNED: tl.constexpr,
    NATIVE: tl.constexpr, first, SCALE_ROWS: tl.constexpr, JOINED: tl.constexpr,
):  # fmt: skip
    """acc + a[BM, BK] times rows `row` (BN of them) of matrix e, columns k..k + BK, scaled. `first`: the first row, of
    one scale block with the others, unless JOINED."""
    if SCHEME == _INT4:
        matrix = w + e.to(tl.int64) * (ROWS * (K // 8))
        words = _u4_words(matrix, row, HALVES, half, k, BK, K, PACKED)
        b = _u4_values(words, BN, BK, PACKED, SIGNED, a.dtype)
        scales = s + e.to(tl.int64) * (ROWS * (K // GROUP))
        group = k // GROUP
        if PACKED:
            at = (((row // 8) * (K // GROUP) + group) * 8 + row % 8) * HALVES + half
        else:
            at = row * (K // GROUP) + group
        scale = tl.load(scales + at).to(tl.float32)
        return acc + tl.dot(a, tl.trans(b), input_precision="ieee") * scale[None, :]
    kk = k + tl.arange(0, BK)
    b = tl.load(w + e.to(tl.int64) * (ROWS * K) + row[:, None] * K + kk[None, :])
    if not NATIVE:
        b = b.to(a.dtype)
    part = tl.dot(a, tl.trans(b), input_precision="ieee")
    if SCHEME == _FP8_BLOCK and JOINED:
        scale = tl.load(s + (e * SCALE_ROWS + row // 128) * (K // 128) + k // 128)
        return acc + part * scale[None, :]
    if SCHEME == _FP8_BLOCK:
        return acc + part * tl.load(s + (e * SCALE_ROWS + first // 128) * (K // 128) + k // 128)
    return acc + part


@triton.jit
def up(
    x, xs, w, s, slots, tile_end, h, E, stride_x, stride_xs, stride_xg, tokens,
    HIDDEN: tl.constexpr, INTER: tl.constexpr, TOP_K: tl.constexpr, GROUP: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, EP: tl.constexpr, SCHEME: tl.constexpr, GATED: tl.constexpr,
    RELU2: tl.constexpr, PACKED: tl.constexpr, SIGNED: tl.constexpr, PREPARED: tl.constexpr,
    NATIVE: tl.constexpr, DOT: tl.constexpr, JOINED: tl.constexpr,
):  # fmt: skip
    """h [routes, INTER]. Grid (INTER / BN, tiles). JOINED: gate and up rows take turns in one product of 2 BN columns
    (gated, not packed)."""
    tile = tl.program_id(1)
    e = _tile_expert(tile_end, tile, E, EP)
    if e >= E:
        return
    route = tl.load(slots + tile * BM + tl.arange(0, BM))
    live = (route >= 0) & (route < tokens * TOP_K)
    token = (tl.where(live, route, 0) // TOP_K).to(tl.int64)
    first = tl.program_id(0) * BN
    column = first + tl.arange(0, BN)
    WIDTH: tl.constexpr = 2 * BN if JOINED else BN
    if JOINED:
        turn = tl.arange(0, 2 * BN)
        row, half = first + turn // 2 + turn % 2 * INTER, turn * 0
    elif GATED or (not PACKED):
        row, half = column, column * 0
    else:  # packed, not gated: units of 16 rows
        row, half = (column // 16) * 8 + column % 8, column // 8 % 2
    gate = tl.zeros((BM, WIDTH), tl.float32)
    linear = tl.zeros((BM, BN), tl.float32)
    ROWS: tl.constexpr = 2 * INTER if GATED else INTER
    SCALE_ROWS: tl.constexpr = ROWS // 128
    for k in range(0, HIDDEN, BK):
        at = token[:, None] * stride_x + k + _columns(BK, PACKED)[None, :]
        a = tl.load(x + at, mask=live[:, None], other=0.0)
        if not NATIVE:
            a = a.to(DOT)
        g = _product(
            tl.zeros((BM, WIDTH), tl.float32), a, w, s, row, half, e, k, ROWS, HIDDEN, GROUP, WIDTH, BK, SCHEME, 2,
            PACKED, SIGNED, NATIVE, first, SCALE_ROWS, JOINED,
        )  # fmt: skip
        if PREPARED:
            scale = tl.load(xs + token * stride_xs + (k // 128) * stride_xg, mask=live, other=0.0)
            g = g * scale[:, None]
        gate += g
        if GATED and not JOINED:
            if PACKED:
                other_row, other_half = row, half + 1
            else:
                other_row, other_half = row + INTER, half
            u = _product(
                tl.zeros((BM, BN), tl.float32), a, w, s, other_row, other_half, e, k, ROWS, HIDDEN, GROUP, BN, BK,
                SCHEME, 2, PACKED, SIGNED, NATIVE, first + INTER, SCALE_ROWS, False,
            )  # fmt: skip
            if PREPARED:
                u = u * scale[:, None]
            linear += u
    if JOINED:
        gate, linear = tl.split(tl.reshape(gate, (BM, BN, 2)))
    if SCHEME == 2:
        alpha = tl.load(s + e)
        gate = gate * alpha
        linear = linear * alpha
    if RELU2:
        y = tl.maximum(gate, 0.0)
        y = y * y
    else:
        y = gate / (1.0 + tl.exp(-gate))
    if GATED:
        y = y * linear
    tl.store(h + route.to(tl.int64)[:, None] * INTER + column[None, :], y.to(h.dtype.element_ty), mask=live[:, None])


@triton.jit
def down(
    h, w, s, weights, slots, tile_end, y, E, routes,
    HIDDEN: tl.constexpr, INTER: tl.constexpr, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, EP: tl.constexpr, SCHEME: tl.constexpr, PACKED: tl.constexpr, SIGNED: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """y [routes, HIDDEN]. Grid (HIDDEN / BN, tiles)."""
    tile = tl.program_id(1)
    e = _tile_expert(tile_end, tile, E, EP)
    if e >= E:
        return
    route = tl.load(slots + tile * BM + tl.arange(0, BM))
    live = (route >= 0) & (route < routes)
    wide = tl.where(live, route, 0).to(tl.int64)
    first = tl.program_id(0) * BN
    row = first + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, INTER, BK):
        a = tl.load(h + wide[:, None] * INTER + k + _columns(BK, PACKED)[None, :], mask=live[:, None], other=0.0).to(
            DOT
        )
        acc = _product(
            acc,
            a,
            w,
            s,
            row,
            row * 0,
            e,
            k,
            HIDDEN,
            INTER,
            GROUP,
            BN,
            BK,
            SCHEME,
            1,
            PACKED,
            SIGNED,
            False,
            first,
            HIDDEN // 128,
            False,
        )
    if SCHEME == 2:
        acc = acc * tl.load(s + e)
    weight = tl.load(weights + wide, mask=live, other=0.0).to(tl.float32)
    tl.store(
        y + wide[:, None] * HIDDEN + row[None, :], (acc * weight[:, None]).to(y.dtype.element_ty), mask=live[:, None]
    )


@triton.jit
def combine(y, ranks, out, stride_out, HIDDEN: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """out[token] = sum over k of y[token, k]; routes that were dropped are not read. Grid (tokens, HIDDEN / BLOCK)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(TOP_K):
        route = token * TOP_K + k
        used = tl.load(ranks + route) >= 0
        total += tl.load(y + route * HIDDEN + column, mask=(column < HIDDEN) & used, other=0.0).to(tl.float32)
    tl.store(out + token * stride_out + column, total.to(out.dtype.element_ty), mask=column < HIDDEN)
