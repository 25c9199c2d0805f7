// Phase 2 of 4-bit weights for few tokens: 8-bit products, as in phase 1, which take half the instructions of 16-bit floats.
// h of a block of 128 values of a token becomes two signed bytes of one step; its rounding, 2^-16 of the block's largest value,
// is lost in that of the 16-bit floats in which it came.
//
// The gatherers split it (hidden.cuh). A row holds its blocks of 128 k (u4_bytes.cuh), and behind them a step a block.
#pragma once
#include "u4_bytes.cuh"

constexpr u32 HIDDEN_PAD = (I_BLOCKS * 4 + 15) / 16 * 16;

// `value`: which 16-byte value of the row v is; `there`: it is one. All lanes call; 16 of them hold a block of 128.
DEVICE void keep_hidden(u32 row, int value, const uint4& v, bool there, int) {
    const int block = value >> 4;
    keep_bytes(row + block * BYTES_BLOCK, row + I * 2 + block * 4, value & 15, v, there);
}

// A warp's share of h: a block of k of the tokens of its columns (high and low bytes side by side).
struct FewHidden {
    u32 byte[4][2];
    float step;
};
DEVICE void take_hidden(FewHidden& f, u32 rows, u32 row_bytes, int block, int lane) {
    const int g = lane >> 2, t = lane & 3;
    take_bytes(f.byte, rows + (g >> 1) % MAX_M * row_bytes + block * BYTES_BLOCK, lane);
    f.step = load_shared_float(rows + t % MAX_M * row_bytes + I * 2 + block * 4);
}

struct FewSlot {
    u32 a[ROW_BLOCKS][4][2];  // lower and upper nibbles of a word
    float scale[ROW_BLOCKS][GROUPS];
};
DEVICE void load_few_slot(FewSlot& f, u32 stage, int slot, int block, int lane) {
    const u32 weights = stage + slot * (ROW_BLOCKS * ROW_BLOCK_BYTES) + block * 512 + lane * 16;
    const u32 scales = stage + STAGE_EXPERTS * ROW_BLOCKS * ROW_BLOCK_BYTES + slot * (ROW_BLOCKS * ROW_BLOCK_SCALES) +
                       (block * GROUPS * 8 + (lane >> 2)) * SCALE_BYTES;
    uint4 w[ROW_BLOCKS];
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r) {
        w[r] = load_shared(weights + r * ROW_BLOCK_BYTES);
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
            f.scale[r][group] = scale_at(scales + r * ROW_BLOCK_SCALES + group * 8 * SCALE_BYTES);
    }
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r)
#pragma unroll
        for (int j = 0; j < 4; ++j) f.a[r][j][0] = word_of(w[r], j) & LOWER, f.a[r][j][1] = word_of(w[r], j) >> 4 & LOWER;
}

// acc[r][0]: row g of row block r, token t.
DEVICE void few_product(float (&acc)[ROW_BLOCKS][HALVES], const FewSlot& f, const float*, const FewHidden& h) {
    constexpr u32 EIGHTS = 0x08080808u;  // the zero point, in the half tile behind the last row block
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        int c[TILES][4];
#pragma unroll
        for (int i = 0; i < 4 * TILES; ++i) c[i / 4][i % 4] = COUNT_BITS;
#pragma unroll
        for (int j = group * WORDS; j < (group + 1) * WORDS; ++j)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const int r = 2 * tile, q = r + 1;
                const bool first = r < ROW_BLOCKS, second = q < ROW_BLOCKS;
                mma_u8s8(c[tile], first ? f.a[first ? r : 0][j][0] : EIGHTS, second ? f.a[second ? q : 0][j][0] : EIGHTS,
                         first ? f.a[first ? r : 0][j][1] : EIGHTS, second ? f.a[second ? q : 0][j][1] : EIGHTS, h.byte[j][0],
                         h.byte[j][1]);
            }
        const float zero_high = __int_as_float(c[ROW_BLOCKS / 2][(ROW_BLOCKS & 1) * 2]);
        const float zero_low = __int_as_float(c[ROW_BLOCKS / 2][(ROW_BLOCKS & 1) * 2 + 1]);
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; ++r) {
            const float high = __int_as_float(c[r / 2][(r & 1) * 2]) - zero_high;
            const float low = __int_as_float(c[r / 2][(r & 1) * 2 + 1]) - zero_low;
            acc[r][0] = fmaf(f.scale[r][group], fmaf(high, 256.f, low), acc[r][0]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r) acc[r][0] *= h.step;
}
