// What stands between W13 and W2.
#pragma once
#include "shape.cuh"

// (1 + e^-gate drops what __expf does for subnormal results.)
DEVICE float activate(float gate, float up) {
    if (RELU2) {
        const float r = gate < 0.f ? 0.f : gate;  // a NaN stays one
        return GATED ? r * r * up : r * r;
    }
    const float v = __fdividef(gate, 1.f + exp2_about(-1.4426950408889634f * gate));
    return GATED ? v * up : v;
}

// 8 rows of h as the 16 bytes that are stored: lane first + i * APART has row i. All lanes call. A pair of zeros is (-0, -0): a
// first word of 0 says that nothing is there.
template <int APART>
DEVICE uint4 hidden_value(float v, int first) {
    const float partner = __shfl_down_sync(~0u, v, APART * HIDDEN_PARTNER);
    const u32 pair = HALF_H ? half_pair(v, partner) : bf16_pair(v, partner);
    u32 word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = __shfl_sync(~0u, pair, first + APART * hidden_leader(i));
    if (word[0] == 0) word[0] = 0x80008000u;
    return make_uint4(word[0], word[1], word[2], word[3]);
}
