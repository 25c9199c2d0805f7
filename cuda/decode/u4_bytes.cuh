// 128 16-bit floats of a token as two signed bytes of one step each, in shared memory, in the order in which the lanes of a
// product load them: [pair of words][t][high, low][word of the pair] times 8 bytes.
#pragma once
#include "u4.cuh"

constexpr u32 BYTES_BLOCK = 256;
// v: the 16-byte value `i` of 16; `there`: it is one. All lanes call; the lanes of a block are 16, side by side.
DEVICE void keep_bytes(u32 block, u32 step_at, int i, const uint4& v, bool there) {
    u32 most = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) most = greater_halves(most, word_of(v, n) & 0x7FFF7FFFu);
    most = greater_halves(most, most >> 16);
#pragma unroll
    for (int d = 1; d < 16; d *= 2) most = greater_halves(most, __shfl_xor_sync(~0u, most, d));
    const float largest = widen(most & 0xFFFF, 0);
    constexpr float SMALL = 1.f / 65536;  // __fdividef gives 0 where the divisor is above 2^126
    // An infinity makes the step a NaN: its bytes are of no sign.
    const float step = largest < TINY ? 0.f : fmaf(largest, 0.f, largest * (1.f / LEVELS));
    const float scale = largest < TINY ? 0.f : __fdividef(LEVELS * SMALL, largest * SMALL);
    const int j = i >> 2, t = i & 3;
    const u32 to = block + (j >> 1) * 128 + t * 32 + (j & 1) * 8;
    u32 high[2], low[2];
    split_bytes(high[0], low[0], v.x, v.z, scale);
    split_bytes(high[1], low[1], v.y, v.w, scale);
    if (!there) return;
    store_shared_pair(to, high[0], high[1]), store_shared_pair(to + 16, low[0], low[1]);
    if (i == 0) store_shared_float(step_at, step);
}

// Of this lane's column: its high bytes (even columns) or low bytes.
DEVICE void take_bytes(u32 (&byte)[4][2], u32 block, int lane) {
    const u32 from = block + (lane & 3) * 32 + (lane >> 2 & 1) * 16;
    const uint4 first = load_shared(from), second = load_shared(from + 128);
    byte[0][0] = first.x, byte[0][1] = first.y, byte[1][0] = first.z, byte[1][1] = first.w;
    byte[2][0] = second.x, byte[2][1] = second.y, byte[3][0] = second.z, byte[3][1] = second.w;
}
