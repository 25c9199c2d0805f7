// 4-bit weights for one token (one_token.cuh).
#pragma once
#include "u4_bytes.cuh"

constexpr u32 UNIT_SPACE = UNIT_BYTES + UNIT_SCALES;
// Where every warp has as many blocks of k, a unit comes in pieces along k, each with a barrier of its own. Some warps begin
// while the others' weights are on their way, and in the end they are not in one another's way.
constexpr int PIECES = SIDE_BY_SIDE ? ONE_TOKEN_PIECES : 1;
DEVICE UnitCopy unit_copy(const Arguments& p, int lane) {
    const int piece = lane % PIECES;
    const bool scales = lane >= PIECES;
    const u32 unit = scales ? UNIT_SCALES : UNIT_BYTES, bytes = unit / PIECES;
    return {(scales ? UNIT_BYTES : 0) + piece * bytes, lane < 2 * PIECES ? bytes : 0, (scales ? p.s13 : p.w13) + piece * bytes,
            UNITS * unit, unit, piece};
}

// x: every lane splits 8 of a warp's values, which then pass through shared memory (`room`, of this warp), the same into all
// columns. Most lanes would do nothing where each loaded its own column.
constexpr u32 X_ROOM = OWN * BYTES_BLOCK + (OWN * 4 + 15) / 16 * 16;
struct AskedX {
    uint4 x[(OWN + 1) / 2];
    DEVICE_MEMBER void ask(Columns&, const Arguments& p, int warp, int lane) {
#pragma unroll
        for (int i = 0; i < (OWN + 1) / 2; ++i) {
            const int o = 2 * i + (lane >> 4), block = own_block(warp, o);
            x[i] = make_uint4(0, 0, 0, 0);
            if (o < OWN && has_block(block)) x[i] = load_global((const u16*)p.x + block * 128 + (lane & 15) * 8);
        }
    }
    DEVICE_MEMBER void take(Columns& f, u32 room, int lane) const {
#pragma unroll
        for (int i = 0; i < (OWN + 1) / 2; ++i) {
            const int o = 2 * i + (lane >> 4);
            keep_bytes(room + o * BYTES_BLOCK, room + OWN * BYTES_BLOCK + o * 4, lane & 15, x[i], o < OWN);
        }
        __syncwarp();
#pragma unroll
        for (int o = 0; o < OWN; ++o) {
            take_bytes(f.byte[0][o], room + o * BYTES_BLOCK, lane);
            f.step[o][0] = load_shared_float(room + OWN * BYTES_BLOCK + o * 4);
            sum_zero(f, o);
        }
    }
};

// Phase 2: 16-bit products, as for lists. h comes as it is stored, and a warp multiplies it at once, where splitting it into
// bytes would take longer than the products that it saves.
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
