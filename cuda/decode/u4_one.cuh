// Phase 2 of 4-bit weights for one token (one_token.cuh): 16-bit products, as for lists. h comes as it is stored, and a warp
// multiplies it at once, where splitting it into bytes would take longer than the products that it saves.
#pragma once
#include "u4.cuh"

constexpr bool ZERO_ROWS = true;  // the half tile behind the last row block gives what the zero point adds
DEVICE int spread_value(int i) { return i; }
DEVICE void spread_mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    (HALF_H ? mma_half : mma_bf16)(c, a[0], a[1], a[2], a[3], b0, b1);
}
// Scales of two words of a row's block, `word` and the next.
DEVICE void spread_scales(float (&scale)[ROW_BLOCKS][2], const Slot& f, const float*, int word) {
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r)
#pragma unroll
        for (int e = 0; e < 2; ++e)
            scale[r][e] = scale_at(f.scales + r * ROW_BLOCK_SCALES + (word + e) / WORDS * (8 * SCALE_BYTES));
}
