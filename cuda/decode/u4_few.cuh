// Phase 2 of 4-bit weights for few tokens: 8-bit products, as in phase 1, which take half the instructions of 16-bit floats.
// h of a block of 128 values of a token becomes two signed bytes of one step; its rounding, 2^-16 of the block's largest value,
// is lost in that of the 16-bit floats in which it came.
//
// The gatherers split it (hidden.cuh). A row holds for each block of 128 k, in the order in which the consumers' lanes load it,
// [pair of words][t][high, low][word of the pair] times 8 bytes; behind them a step a block.
#pragma once
#include "u4.cuh"

constexpr u32 HIDDEN_PAD = (I_BLOCKS * 4 + 15) / 16 * 16;

// `value`: which 16-byte value of the row v is; `there`: it is one. All lanes call; 16 of them hold a block of 128.
DEVICE void keep_hidden(u32 row, int value, const uint4& v, bool there, int lane) {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) most = greater_halves(most, word_of(v, i) & 0x7FFF7FFFu);
    most = greater_halves(most, most >> 16);
#pragma unroll
    for (int d = 1; d < 16; d *= 2) most = greater_halves(most, __shfl_xor_sync(~0u, most, d));
    const float largest = widen(most & 0xFFFF, 0);
    constexpr float SMALL = 1.f / 65536;  // __fdividef gives 0 where the divisor is above 2^126
    // An infinity makes the step a NaN: its bytes are of no sign.
    const float step = largest < TINY ? 0.f : fmaf(largest, 0.f, largest * (1.f / LEVELS));
    const float scale = largest < TINY ? 0.f : __fdividef(LEVELS * SMALL, largest * SMALL);
    const int block = value >> 4, j = value >> 2 & 3, t = value & 3;
    const u32 to = row + block * 256 + (j >> 1) * 128 + t * 32 + (j & 1) * 8;
    u32 high[2], low[2];
    split_bytes(high[0], low[0], v.x, v.z, scale);
    split_bytes(high[1], low[1], v.y, v.w, scale);
    if (!there) return;
    store_shared_pair(to, high[0], high[1]), store_shared_pair(to + 16, low[0], low[1]);
    if ((value & 15) == 0) store_shared_float(row + I * 2 + block * 4, step);
}

// A warp's share of h: a block of k of the tokens of its columns (high and low bytes side by side).
struct FewHidden {
    u32 byte[4][2];
    float step;
};
DEVICE void take_hidden(FewHidden& f, u32 rows, u32 row_bytes, int block, int lane) {
    const int g = lane >> 2, t = lane & 3;
    const u32 from = rows + (g >> 1) % MAX_M * row_bytes + block * 256 + t * 32 + (g & 1) * 16;
    const uint4 first = load_shared(from), second = load_shared(from + 128);
    f.byte[0][0] = first.x, f.byte[0][1] = first.y, f.byte[1][0] = first.z, f.byte[1][1] = first.w;
    f.byte[2][0] = second.x, f.byte[2][1] = second.y, f.byte[3][0] = second.z, f.byte[3][1] = second.w;
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
