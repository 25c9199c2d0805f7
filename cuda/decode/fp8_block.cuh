// e4m3 weights with one fp32 scale for 128 x 128, in the checkpoint's own order (rows of bytes): 8 rows of W13 or W2 are
// contiguous, which is all that the bulk copies want, so there is nothing to repack.
#pragma once
#include "shape.cuh"

constexpr u32 UNIT_BYTES = 16 * H;
// From a row of a unit to the next, in shared memory. Padded, two rows' lanes fall on different banks (fp8_one.cuh).
constexpr u32 UNIT_ROW = MAX_M == 1 ? H + 64 : H;
constexpr u32 ROW_BLOCK_BYTES = 8 * I;  // 8 rows of W2
constexpr bool SCALES_IN_RING = false;  // too few to copy: they are loaded where they are needed
constexpr u32 UNIT_SCALES = 0, ROW_BLOCK_SCALES = 0;
constexpr bool HALF_H = false;  // h is bf16: e4m3 goes there by bits

// Activations of up to 8 tokens as B fragments, and for each 128-wide block of k the scales of columns 2t and 2t + 1 and those
// of the weights (gate rows, up rows), which are asked for a unit before they are used. The tensor cores of sm_90 multiply e4m3
// as fp16 (ptxas makes the conversions), so activations are converted once, when they are loaded.
constexpr bool PAIRED = false;  // u4.cuh, as HALVES, SUMS and column_of are
constexpr int HALVES = 2, SUMS = 4;
DEVICE int column_of(int g) { return g; }
struct Columns {
    u32 b[OWN][8][2];
    float scale[OWN][2], weight[OWN][2], asked[OWN][2];
};

// `token` is this lane's column; one that is not live is 0. A lane's 16 bytes in a row are what unit_product takes of the
// weights, so the order of k within 64 is of no account.
DEVICE uint4 ask_column(const Arguments& p, int token, bool live, int block, int j, int lane) {
    const u8* row = p.x + (live ? (u64)token * p.x_stride : 0) + (lane & 3) * 16;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (live && has_block(block)) v = load_global(row + block * 128 + j * 64);
    return v;
}
DEVICE void take_column(Columns& f, const uint4& v, int o, int j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        f.b[o][4 * j + i][0] = half_of_e4m3(v.x, i), f.b[o][4 * j + i][1] = half_of_e4m3(v.y, i);
        f.b[o][4 * j + 2 + i][0] = half_of_e4m3(v.z, i), f.b[o][4 * j + 2 + i][1] = half_of_e4m3(v.w, i);
    }
}
DEVICE void load_columns(Columns& f, const Arguments& p, int token, bool live, int warp, int lane) {
#pragma unroll
    for (int o = 0; o < OWN; ++o)
#pragma unroll
        for (int j = 0; j < 2; ++j) take_column(f, ask_column(p, token, live, own_block(warp, o), j, lane), o, j);
}

// Scales of the tokens of columns 2t and 2t + 1 (those past the last token are 0).
DEVICE void load_column_scales(Columns& f, const Arguments& p, int even, int odd, int tokens, int warp) {
#pragma unroll
    for (int o = 0; o < OWN; ++o) {
        const int block = own_block(warp, o);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int token = c ? odd : even;
            const bool live = token < tokens && has_block(block);
            f.scale[o][c] = live ? p.xs[(u64)token * p.xs_token + (u64)block * p.xs_group] : 0.f;
        }
    }
}

// The scales of unit `within` of an expert.
DEVICE void ask_weight_scales(Columns& f, const Arguments& p, int expert, int within, int warp) {
    constexpr int SCALE_ROWS = GATED ? 2 * I_BLOCKS : I_BLOCKS;
    const int scale_row = within * (GATED ? 8 : 16) / 128;
    const float* low = (const float*)p.s13 + ((u64)expert * SCALE_ROWS + scale_row) * H_BLOCKS;
    const float* high = GATED ? low + I_BLOCKS * H_BLOCKS : low;
#pragma unroll
    for (int o = 0; o < OWN; ++o) {
        const int block = min(own_block(warp, o), H_BLOCKS - 1);
        f.asked[o][0] = low[block], f.asked[o][1] = high[block];
    }
}
DEVICE void take_weight_scales(Columns& f) {
#pragma unroll
    for (int o = 0; o < OWN; ++o) f.weight[o][0] = f.asked[o][0], f.weight[o][1] = f.asked[o][1];
}

DEVICE void prefetch_columns(const Arguments& p, int token, int warp, int o) {
    if (o < OWN && has_block(own_block(warp, o))) prefetch_l1(p.x + (u64)token * p.x_stride + own_block(warp, o) * 128);
}

// This warp's share of one unit: acc[0], acc[1] rows g (gate), acc[2], acc[3] rows g + 8 (up), columns 2t and 2t + 1.
DEVICE void unit_product(float (&acc)[SUMS], u32 stage, const Columns& f, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int o = 0; o < OWN; ++o) {
        const int block = own_block(warp, o);
        if (!has_block(block)) break;
        float c[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const u32 at = stage + g * UNIT_ROW + block * 128 + j * 64 + t * 16;
            const uint4 low = load_shared(at), high = load_shared(at + 8 * UNIT_ROW);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                mma_half(c, half_of_e4m3(low.x, i), half_of_e4m3(high.x, i), half_of_e4m3(low.y, i), half_of_e4m3(high.y, i),
                         f.b[o][4 * j + i][0], f.b[o][4 * j + i][1]);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                mma_half(c, half_of_e4m3(low.z, i), half_of_e4m3(high.z, i), half_of_e4m3(low.w, i), half_of_e4m3(high.w, i),
                         f.b[o][4 * j + 2 + i][0], f.b[o][4 * j + 2 + i][1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[i] += f.scale[o][i & 1] * f.weight[o][i >> 1] * c[i];
    }
}

// Four e4m3 values -> two bf16 pairs, (k0, k2) and (k1, k3); the writer of h pairs its values likewise. Sign, exponent and
// mantissa move to their places in bf16; times 2^120 makes up for the difference of the biases (exact, subnormals included).
constexpr u32 TWO_TO_120 = 0x7B807B80u;
DEVICE u32 even_pair(u32 w) { return multiply_bf16(and_or<0x80008000u>(w << 8, (w << 4) & 0x07F007F0u), TWO_TO_120); }
DEVICE u32 odd_pair(u32 w) { return multiply_bf16(and_or<0x80008000u>(w, (w >> 4) & 0x07F007F0u), TWO_TO_120); }

// Where the values of 8 rows of h lie: (0, 2)(1, 3)(4, 6)(5, 7). A row's partner is so many further on; word i begins with
// hidden_leader(i).
constexpr int HIDDEN_PARTNER = 2;
DEVICE constexpr int hidden_leader(int word) { return (word >> 1) * 4 + (word & 1); }

// Where the j-th vector of 8 values of a lane's share of a block of h begins: 16 in a row, as the weights' 16 bytes are.
DEVICE int hidden_offset(int j, int t) { return (j >> 1) * 64 + t * 16 + (j & 1) * 8; }

// The warp's weights of a slot as A fragments; two row blocks share a tile.
constexpr int TILES = (ROW_BLOCKS + 1) / 2;
struct Slot {
    u32 a[TILES][8][4];
};

DEVICE void load_slot(Slot& f, u32 stage, int slot, int block, int lane) {
    const u32 weights = stage + slot * (ROW_BLOCKS * ROW_BLOCK_BYTES) + (lane >> 2) * I + block * 128 + (lane & 3) * 16;
#pragma unroll
    for (int row = 0; row < 2 * TILES; ++row)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (row < ROW_BLOCKS) v = load_shared(weights + row * ROW_BLOCK_BYTES + j * 64);
            const u32 word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                f.a[row / 2][4 * j + s][row % 2] = row < ROW_BLOCKS ? even_pair(word[s]) : 0;
                f.a[row / 2][4 * j + s][row % 2 + 2] = row < ROW_BLOCKS ? odd_pair(word[s]) : 0;
            }
        }
}

// acc[r][0..1]: row g of row block r, columns 2t and 2t + 1.
DEVICE void slot_product(float (&acc)[ROW_BLOCKS][2], const Slot& f, const float* block_scale, const Hidden& h) {
    float c[TILES][4] = {};
#pragma unroll
    for (int step = 0; step < 8; ++step)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
            mma_bf16(c[tile], f.a[tile][step][0], f.a[tile][step][1], f.a[tile][step][2], f.a[tile][step][3], h.b[step][0],
                     h.b[step][1]);
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r)
        acc[r][0] += block_scale[r] * c[r / 2][(r & 1) * 2], acc[r][1] += block_scale[r] * c[r / 2][(r & 1) * 2 + 1];
}

// ---- few tokens: h in shared memory as it is
constexpr u32 HIDDEN_PAD = 16;  // bytes: the lanes of a load fall on different banks
DEVICE void keep_hidden(u32 row, int value, const uint4& v, bool there, int) {
    if (there) store_shared(row + value * 16, v);
}
typedef Hidden FewHidden;
DEVICE void take_hidden(Hidden& f, u32 rows, u32 row_bytes, int block, int lane) {
    const u32 from = rows + (lane >> 2) % MAX_M * row_bytes + block * 256 + hidden_offset(0, lane & 3) * 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const uint4 v = load_shared(from + hidden_offset(j, 0) * 2);
        f.b[2 * j][0] = v.x, f.b[2 * j][1] = v.y, f.b[2 * j + 1][0] = v.z, f.b[2 * j + 1][1] = v.w;
    }
}
typedef Slot FewSlot;
DEVICE void load_few_slot(Slot& f, u32 stage, int slot, int block, int lane) { load_slot(f, stage, slot, block, lane); }
DEVICE void few_product(float (&acc)[ROW_BLOCKS][HALVES], const Slot& f, const float* block_scale, const Hidden& h) {
    slot_product(acc, f, block_scale, h);
}
