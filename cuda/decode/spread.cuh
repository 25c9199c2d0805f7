// One token, phase 2: a slot's product with h as it lies in global memory, without a way through shared memory or shuffles.
//
// The weights are the left operand. A token fills one column of eight, so the columns serve to spread h: lane 4g + t holds one
// value, and column g is what that lane holds. Of a product with words 2w and 2w + 1 of the weights only the column whose lanes
// hold that part of h counts (one of the first four; the others are those again); what is left is not added.
#pragma once
#include "shape.cuh"

// total += weight * W2 h of this lane's columns.
DEVICE void spread_product(float (&total)[ROW_BLOCKS], const Slot& f, const float (&scale)[ROW_BLOCKS][2], const uint4& h,
                           float weight, int lane) {
    float c[4][TILES][4] = {};
#pragma unroll
    for (int q = 0; q < 2; ++q)
#pragma unroll
        for (int w = 0; w < 4; ++w)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) spread_mma(c[w][tile], f.a[tile][2 * w + q], q ? h.z : h.x, q ? h.w : h.y);
    // Columns 2t and 2t + 1 hold words 2 (t & 1) and the next.
    const bool odd = lane & 1;
    auto pick = [&](int row, int e) {  // of row block `row`
        const int tile = row / 2, at = (row & 1) * 2 + e;
        return odd ? c[2 + e][tile][at] : c[e][tile][at];
    };
    const float zero[2] = {ZERO_ROWS ? pick(ROW_BLOCKS, 0) : 0.f, ZERO_ROWS ? pick(ROW_BLOCKS, 1) : 0.f};
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r)
        total[r] = fmaf(weight, scale[r][0] * (pick(r, 0) + zero[0]) + scale[r][1] * (pick(r, 1) + zero[1]), total[r]);
}
