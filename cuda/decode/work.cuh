// A thread block's share of a launch, and how its weights come into shared memory.
#pragma once
#include "state.cuh"

// An expert's rows of W2 that a block owns: a slot of a stage.
constexpr u32 SLOT_BYTES = ROW_BLOCKS * ROW_BLOCK_BYTES, SLOT_SCALES = ROW_BLOCKS * ROW_BLOCK_SCALES;

// This block's share: `units` units of the listed experts', and 8-row blocks of W2 of all of them, which are `stages` stages
// of the ring.
//
// Where columns are tokens, the blocks take turns at the units, so that h of the first experts is complete long
// before that of the last ones: phase 2 begins without waiting for the slowest block. With lists a block's units stand
// together, since an expert's tokens are loaded once for all of them.
struct Work {
    int unit_first, units, row_first, row_blocks, stages;
    DEVICE_MEMBER int unit(int i) const { return unit_first + i * (COLUMN_IS_TOKEN ? BLOCKS : 1); }
};
DEVICE Work work_of(int distinct) {
    Work w;
    const u32 units = distinct * UNITS;
    if (COLUMN_IS_TOKEN) {
        w.unit_first = blockIdx.x;
        w.units = (units + BLOCKS - 1 - blockIdx.x) / BLOCKS;
    } else {
        w.unit_first = units * blockIdx.x / BLOCKS;
        w.units = units * (blockIdx.x + 1) / BLOCKS - w.unit_first;
    }
    w.row_first = OUT_BLOCKS * blockIdx.x / BLOCKS;
    w.row_blocks = OUT_BLOCKS * (blockIdx.x + 1) / BLOCKS - w.row_first;
    w.stages = w.row_blocks ? (distinct + STAGE_EXPERTS - 1) / STAGE_EXPERTS : 0;
    return w;
}

// A lane's own value, computed here if ptxas lets it: what is first used behind a wait it puts off till there, a shuffle of it
// it mostly leaves in its place. (Of 4-bit units of 2 to 4 tokens it moves them behind the wait as well.)
DEVICE u32 settled(u32 value, int lane) { return __shfl_sync(~0u, value, lane); }
DEVICE const u8* settled(const u8* pointer, int lane) {
    return (const u8*)((u64)settled((u32)((u64)pointer >> 32), lane) << 32 | settled((u32)(u64)pointer, lane));
}

// Barriers of a stage. One token: one for each expert, whose warps begin while the others' weights are on their way, and in the
// end are not in one another's way.
constexpr int STAGE_BARRIERS = MAX_M == 1 ? STAGE_EXPERTS : 1;

// All lanes of the producer call. `listed`: the experts, in the order of their slots; `to`: shared memory, `full`: the first of
// the barriers that learn of the bytes.
DEVICE void copy_slices(const u16* listed, int distinct, const Arguments& p, const Work& work, int step, u32 to, u32 full,
                        u64 policy, int lane) {
    const int experts = min(STAGE_EXPERTS, distinct - step * STAGE_EXPERTS);
    const u32 bytes = work.row_blocks * (ROW_BLOCK_BYTES + ROW_BLOCK_SCALES);  // of an expert
    if constexpr (STAGE_BARRIERS == 1) {
        if (lane == 0) barrier_expect(full, experts * bytes);
    } else {
        full += lane * 8;  // of this lane's expert
        if (lane < experts) barrier_expect(full, bytes);
    }
    __syncwarp();
    if (lane < experts) {
        const u64 row = (u64)listed[step * STAGE_EXPERTS + lane] * OUT_BLOCKS + work.row_first;
        bulk_copy(to + lane * SLOT_BYTES, p.w2 + row * ROW_BLOCK_BYTES, work.row_blocks * ROW_BLOCK_BYTES, full, policy);
        if (SCALES_IN_RING)
            bulk_copy(to + STAGE_EXPERTS * SLOT_BYTES + lane * SLOT_SCALES, p.s2 + row * ROW_BLOCK_SCALES,
                      work.row_blocks * ROW_BLOCK_SCALES, full, policy);
    }
    __syncwarp();
}

// FP8's scales of W2 are not copied: those of this block's rows in one block of k of an expert.
DEVICE void load_block_scales(float (&scale)[ROW_BLOCKS], const Arguments& p, const Work& work, int expert, int block) {
    const float* scales = (const float*)p.s2 + (u64)expert * (H_BLOCKS * I_BLOCKS) + block;
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r) scale[r] = scales[min(work.row_first + r, OUT_BLOCKS - 1) / 16 * I_BLOCKS];
}

// Nor those of W13: asked for a unit ahead, where there is an `i`-th one. `listed`: the experts, in order.
DEVICE void ask_unit_scales(Columns& columns, const Arguments& p, const u16* listed, const Work& work, int i, int warp) {
    if (!SCALES_IN_RING && i < work.units) {
        const int unit = work.unit(i);
        ask_weight_scales(columns, p, listed[unit / UNITS], unit % UNITS, warp);
    }
}

// STRICT: every lane arrives, not one for its warp. compute-sanitizer's racecheck follows arrivals lane by lane and does
// not see that __syncwarp orders the others before the one.
constexpr int ARRIVALS = STRICT ? 32 : 1;  // of a warp
DEVICE void warp_arrive(u32 barrier, int lane) {
    __syncwarp();
    if (STRICT || lane == 0) barrier_arrive(barrier);
}
