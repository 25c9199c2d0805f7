// What the roles of a thread block share: its memory, its ring, its part of the work.
#pragma once
#include "routes.cuh"

constexpr int RELOAD_UNITS = SCALES_IN_RING ? UNITS : (GATED ? 16 : 8);
constexpr u32 SLOT_BYTES = ROW_BLOCKS * ROW_BLOCK_BYTES, SLOT_SCALES = ROW_BLOCKS * ROW_BLOCK_SCALES;
constexpr int PART = 4 * 32 + 1;  // one word more, so that the finishers' lanes fall on 32 banks

struct Shared {
    u64 full[STAGES], empty[STAGES], part_full[PARTIALS], part_empty[PARTIALS];
    float part[PARTIALS][CONSUMERS * PART];
    float sums[CONSUMERS][MAX_M][OUT_ROWS];  // each warp's part of out: of the whole launch, or (many tokens) as it goes
    Routes routes;
};

static_assert(sizeof(Shared) <= SHARED_ROOM, "plan.py reserves what follows the ring");

// TRACE=1: clock stamps of warp 0 behind the buffers, 16 of them a block (an aid for tuning).
#ifndef TRACE
#define TRACE 0
#endif
// STRICT=1: every lane arrives, not one for its warp. compute-sanitizer's racecheck follows arrivals lane by lane and does
// not see that __syncwarp orders the others before the one.
#ifndef STRICT
#define STRICT 0
#endif
constexpr int ARRIVALS = STRICT ? 32 : 1;  // of a warp
DEVICE void warp_arrive(u32 barrier, int lane) {
    __syncwarp();
    if (STRICT || lane == 0) barrier_arrive(barrier);
}

DEVICE void stamp(const Arguments& p, int i, int thread = 0) {
    if (TRACE && threadIdx.x == thread) ((long long*)(p.state + 256 + 2 * p.half))[blockIdx.x * 16 + i] = clock64();
}

struct Ring {
    u32 base, full, empty;
    int stage = 0;
    u32 phase = 0;
    DEVICE_MEMBER u32 memory() const { return base + stage * STAGE_BYTES; }
    DEVICE_MEMBER u32 full_barrier() const { return full + stage * 8; }
    DEVICE_MEMBER u32 empty_barrier() const { return empty + stage * 8; }
    DEVICE_MEMBER void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

struct Work {
    int unit_first, unit_last, row_first, row_blocks, stages;
};
DEVICE Work work_of(int distinct) {
    Work w;
    const u32 units = distinct * UNITS;
    w.unit_first = units * blockIdx.x / BLOCKS;
    w.unit_last = units * (blockIdx.x + 1) / BLOCKS;
    w.row_first = OUT_BLOCKS * blockIdx.x / BLOCKS;
    w.row_blocks = OUT_BLOCKS * (blockIdx.x + 1) / BLOCKS - w.row_first;
    w.stages = w.row_blocks ? (distinct + STAGE_EXPERTS - 1) / STAGE_EXPERTS : 0;
    return w;
}
