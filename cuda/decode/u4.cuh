// 4-bit weights in the order "sm90_mma" (layout.py): 512 bytes hold 8 rows x 128 k; lane 4g + t owns 16 bytes = row g,
// word j = the 8 values k = 32j + 8t .. + 7, of which nibble i and nibble 4 + i are the pair (2i, 2i + 1).
#pragma once
#include "shape.cuh"

constexpr int SCALE_BYTES = SCALE == 2 ? 4 : 2;
constexpr int GROUPS = 128 / GROUP;   // scale groups in a 128-wide block
constexpr int STEPS = GROUP / 16;     // mma steps in a scale group
constexpr u32 UNIT_BYTES = 8 * H;
constexpr u32 UNIT_SCALES = 16 * (H / GROUP) * SCALE_BYTES;
constexpr u32 ROW_BLOCK_BYTES = 4 * I;                              // 8 rows of W2
constexpr u32 ROW_BLOCK_SCALES = 8 * (I / GROUP) * SCALE_BYTES;
constexpr bool SCALES_IN_RING = true;

// A nibble pair placed into the mantissa of a constant: bf16 128 + n, fp16 1024 + n. The constant and the zero point 8
// leave by a second product, of -136 (-1032) with the same activations.
template <bool HALF>
DEVICE u32 magic() { return kept(HALF ? 0x64006400u : 0x43004300u); }
DEVICE u32 pair_of(u32 word, int i, u32 magic) { return and_or<0x000F000Fu>(word >> (4 * i), magic); }
template <bool HALF>
DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if (HALF) mma_half(c, a0, a1, a2, a3, b0, b1);
    else mma_bf16(c, a0, a1, a2, a3, b0, b1);
}
template <bool HALF>
DEVICE void mma_zero_point(float (&c)[4], u32 b0, u32 b1) {
    const u32 a = HALF ? 0xE408E408u : 0xC308C308u;
    mma<HALF>(c, a, a, a, a, b0, b1);
}
DEVICE u32 word_of(const uint4& v, int j) { return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w; }

DEVICE float scale_at(u32 address) {
    if (SCALE == 2) {
        float v;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
        return v;
    }
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
    return SCALE == 1 ? float_of_half(v) : float_of_bf16(v);
}

// Activations of up to 8 tokens as B fragments, and what the zero point takes off each column.
struct Columns {
    u32 b[OWN][8][2];
    float zero[OWN][GROUPS][2];
};

DEVICE void load_columns(Columns& f, const Arguments& p, const u16* tokens, int count, int, int, int warp, int lane) {
    const int g = lane >> 2, t = lane & 3;
    const bool live = g < count;
    const u16* row = (const u16*)p.x + (live ? (u64)tokens[g] * p.x_stride : 0);
#pragma unroll
    for (int o = 0; o < OWN; ++o) {
        const int block = warp + o * CONSUMERS;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (live && block < H_BLOCKS) v = load_global(row + block * 128 + j * 32 + t * 8);
            f.b[o][2 * j][0] = v.x, f.b[o][2 * j][1] = v.y, f.b[o][2 * j + 1][0] = v.z, f.b[o][2 * j + 1][1] = v.w;
        }
    }
#pragma unroll
    for (int o = 0; o < OWN; ++o)
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            float c[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (int s = 0; s < STEPS; ++s) mma_zero_point<HALF_X>(c, f.b[o][group * STEPS + s][0], f.b[o][group * STEPS + s][1]);
            f.zero[o][group][0] = c[0], f.zero[o][group][1] = c[1];
        }
}

DEVICE void prefetch_columns(const Arguments& p, const u16* tokens, int count, int warp, int lane) {
    const int g = lane >> 2, o = lane & 3;
    if (g < count && o < OWN && warp + o * CONSUMERS < H_BLOCKS) {
        const u16* row = (const u16*)p.x + (u64)tokens[g] * p.x_stride + (warp + o * CONSUMERS) * 128;
        prefetch(row), prefetch(row + 64);
    }
}

// This warp's share of one unit: acc[0], acc[1] rows g (gate), acc[2], acc[3] rows g + 8 (up), columns 2t and 2t + 1.
DEVICE void unit_product(float (&acc)[4], u32 stage, const Columns& f, int warp, int lane) {
    const int g = lane >> 2;
    const u32 constant = magic<HALF_X>();
#pragma unroll
    for (int o = 0; o < OWN; ++o) {
        const int block = warp + o * CONSUMERS;
        if (block >= H_BLOCKS) break;
        const uint4 low = load_shared(stage + block * 1024 + lane * 16);
        const uint4 high = load_shared(stage + block * 1024 + 512 + lane * 16);
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            // Two chains: a product waits for the one before the last.
            float c[2][4] = {{f.zero[o][group][0], f.zero[o][group][1], f.zero[o][group][0], f.zero[o][group][1]}, {}};
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const int step = group * STEPS + s, i = (step & 1) * 2;
                const u32 l = word_of(low, step >> 1), h = word_of(high, step >> 1);
                mma<HALF_X>(c[s & 1], pair_of(l, i, constant), pair_of(h, i, constant), pair_of(l, i + 1, constant),
                            pair_of(h, i + 1, constant), f.b[o][step][0], f.b[o][step][1]);
            }
            const u32 scales = stage + UNIT_BYTES + ((block * GROUPS + group) * 16 + g * 2) * SCALE_BYTES;
            const float low_scale = scale_at(scales), high_scale = scale_at(scales + SCALE_BYTES);
            acc[0] += low_scale * (c[0][0] + c[1][0]), acc[1] += low_scale * (c[0][1] + c[1][1]);
            acc[2] += high_scale * (c[0][2] + c[1][2]), acc[3] += high_scale * (c[0][3] + c[1][3]);
        }
    }
}

// Where the values of 8 rows of h lie: in order, pairs of neighbours.
constexpr int HIDDEN_PARTNER = 1;
DEVICE bool hidden_leads(int row) { return (row & 1) == 0; }
DEVICE int hidden_word(int row) { return row >> 1; }

// Where the j-th vector of 8 values of a lane's share of a block of h begins.
DEVICE int hidden_offset(int j, int t) { return j * 32 + t * 8; }

// acc[r][0..1]: row g of row block r, columns 2t and 2t + 1. The row blocks fill the halves of the tiles one after the
// other; the half behind the last one holds the zero point, so its product costs nothing.
DEVICE void slot_product(float (&acc)[ROW_BLOCKS][2], u32 stage, int slot, int block, const float*, const Hidden& f, int lane) {
    constexpr int TILES = (ROW_BLOCKS + 2) / 2;
    constexpr u32 ZERO_POINT = 0xC308C308u;
    const u32 constant = magic<false>();
    const int g = lane >> 2;
    const u32 weights = stage + slot * (ROW_BLOCKS * ROW_BLOCK_BYTES) + block * 512 + lane * 16;
    const u32 scales = stage + STAGE_EXPERTS * ROW_BLOCKS * ROW_BLOCK_BYTES + slot * (ROW_BLOCKS * ROW_BLOCK_SCALES) +
                       (block * GROUPS * 8 + g) * SCALE_BYTES;
    uint4 w[2 * TILES];
#pragma unroll
    for (int r = 0; r < 2 * TILES; ++r) w[r] = r < ROW_BLOCKS ? load_shared(weights + r * ROW_BLOCK_BYTES) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        float c[TILES][4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const int step = group * STEPS + s, i = (step & 1) * 2;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const bool low_is_row = 2 * tile < ROW_BLOCKS, high_is_row = 2 * tile + 1 < ROW_BLOCKS;
                const u32 l = word_of(w[2 * tile], step >> 1), h = word_of(w[2 * tile + 1], step >> 1);
                const u32 a0 = low_is_row ? pair_of(l, i, constant) : ZERO_POINT, a2 = low_is_row ? pair_of(l, i + 1, constant) : ZERO_POINT;
                const u32 a1 = high_is_row ? pair_of(h, i, constant) : ZERO_POINT, a3 = high_is_row ? pair_of(h, i + 1, constant) : ZERO_POINT;
                mma<false>(c[tile], a0, a1, a2, a3, f.b[step][0], f.b[step][1]);
            }
        }
        const float z0 = c[ROW_BLOCKS / 2][(ROW_BLOCKS & 1) * 2], z1 = c[ROW_BLOCKS / 2][(ROW_BLOCKS & 1) * 2 + 1];
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; ++r) {
            const float scale = scale_at(scales + r * ROW_BLOCK_SCALES + group * 8 * SCALE_BYTES);
            acc[r][0] += scale * (c[r / 2][(r & 1) * 2] + z0), acc[r][1] += scale * (c[r / 2][(r & 1) * 2 + 1] + z1);
        }
    }
}
