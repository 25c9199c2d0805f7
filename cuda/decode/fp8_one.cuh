// Block-scaled FP8 for one token (one_token.cuh).
#pragma once
#include "fp8_block.cuh"

constexpr u32 UNIT_SPACE = 16 * UNIT_ROW;
constexpr int PIECES = 1;
// A copy a row: gate rows, and the up rows I further down. (Of two copies under way each gets half of the memory's rate, so with
// large ones the first of two units comes as late as the second.)
DEVICE UnitCopy unit_copy(const Arguments& p, int lane) {
    const u64 row = GATED && lane >= 8 ? I - 8 + lane : lane;
    return {lane * UNIT_ROW, lane < 16 ? (u32)H : 0u, p.w13 + row * H, UNITS * UNIT_BYTES, UNIT_BYTES / (GATED ? 2 : 1), 0};
}

constexpr u32 X_ROOM = 16;  // bytes of shared memory a warp takes for x: none
struct AskedX {
    uint4 v[OWN][2];
    DEVICE_MEMBER void ask(Columns& f, const Arguments& p, int warp, int lane) {
#pragma unroll
        for (int o = 0; o < OWN; ++o)
#pragma unroll
            for (int j = 0; j < 2; ++j) v[o][j] = ask_column(p, 0, lane < 4, own_block(warp, o), j, lane);
        load_column_scales(f, p, 0, 1, 1, warp);
    }
    DEVICE_MEMBER void take(Columns& f, u32, int) const {
#pragma unroll
        for (int o = 0; o < OWN; ++o)
#pragma unroll
            for (int j = 0; j < 2; ++j) take_column(f, v[o][j], o, j);
    }
};

constexpr bool ZERO_ROWS = false;
// Steps 2w and 2w + 1 take 16 bytes of h, of lane t: 16 values of k in a row are the two values of steps 4j .. 4j + 3.
DEVICE int spread_value(int i) { return (i >> 3) * 8 + (i & 3) * 2 + (i >> 2 & 1); }
DEVICE void spread_mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1); }
DEVICE void spread_scales(float (&scale)[ROW_BLOCKS][2], const Slot&, const float* block_scale, int) {
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r) scale[r][0] = scale[r][1] = block_scale[r];
}
