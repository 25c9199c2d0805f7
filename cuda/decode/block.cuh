// What the roles of a thread block share: its memory, its ring, its part of the work, aids for tools.
#pragma once
#include "routes.cuh"

// A stage of the ring is a unit of W13, or STAGE_EXPERTS slots: one expert's rows of W2 that this block owns.
constexpr u32 SLOT_BYTES = ROW_BLOCKS * ROW_BLOCK_BYTES, SLOT_SCALES = ROW_BLOCKS * ROW_BLOCK_SCALES;
constexpr int PART = 4 * 32 + 1;  // a warp's part of a unit; one word more, so that the finishers' lanes fall on 32 banks

struct Shared {
    u64 full[STAGES], empty[STAGES], part_full[PARTIALS], part_empty[PARTIALS];  // barriers
    float part[PARTIALS][CONSUMERS * PART];
    float sums[CONSUMERS][MAX_M][OUT_ROWS];  // each warp's part of out: written at the end (COLUMN_IS_TOKEN), or added to
    Routes routes;
};

static_assert(sizeof(Shared) <= SHARED_ROOM, "plan.py reserves what follows the ring");

DEVICE u8* hidden_buffer(const Arguments& p, int parity) { return p.state + STATE_HEADER + parity * p.half; }

// TRACE=1, for tuning: clock stamps behind the two buffers, 16 places a block (`state` must be BLOCKS * 128 bytes longer than
// plan.py says). A later stamp of the same number overwrites an earlier one.
//   warp 0    0 started; 1 the launch before is over; 2 routes sorted; 3 first unit in shared memory; 4 W13 done;
//             5 first stage of W2 in shared memory (only if EARLY: slots.cuh); 6 its h seen; 7 W2 done; 8 out stored
//   producer  9 starts; 10 has asked for everything
#ifndef TRACE
#define TRACE 0
#endif
DEVICE void stamp(const Arguments& p, int i, int thread = 0) {
    if (TRACE && threadIdx.x == thread) ((long long*)hidden_buffer(p, 2))[blockIdx.x * 16 + i] = clock64();
}

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

// A role's place in the ring: it goes round it in step with the others, in the order in which stages are filled.
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

// This block's share: units [unit_first, unit_last) of the listed experts', and 8-row blocks of W2 of all of them, which are
// `stages` stages of the ring.
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
