// What the roles of a thread block share: its memory, its ring, its part of the work, aids for tools.
#pragma once
#include "routes.cuh"

// A stage of the ring is a unit of W13, or STAGE_EXPERTS slots: one expert's rows of W2 that this block owns.
constexpr u32 SLOT_BYTES = ROW_BLOCKS * ROW_BLOCK_BYTES, SLOT_SCALES = ROW_BLOCKS * ROW_BLOCK_SCALES;
constexpr int PART = SUMS * 32 + 1;  // a warp's part of a unit; one word more, so that the finishers' lanes fall on 32 banks

// h of a stage of W2 (hidden.cuh): a row for each (expert of the stage, token).
constexpr u32 HIDDEN_ROW = I * 2 + HIDDEN_PAD, HIDDEN_BYTES = STAGE_EXPERTS * MAX_M * HIDDEN_ROW;

struct Shared {
    u64 full[STAGES], empty[STAGES], part_full[PARTIALS], part_empty[PARTIALS];  // barriers
    u64 hidden_full[HIDDEN_BUFFERS], hidden_empty[HIDDEN_BUFFERS];
    u64 nearly_there;  // few units of W13 are left: time to look for h
    alignas(16) u8 hidden[COLUMN_IS_TOKEN ? HIDDEN_BUFFERS : 1][COLUMN_IS_TOKEN ? HIDDEN_BYTES : 16];
    float part[PARTIALS][CONSUMERS * PART];
    float sums[CONSUMERS][MAX_M][OUT_ROWS];  // each warp's part of out: written at the end (COLUMN_IS_TOKEN), or added to
    Routes routes;
};

static_assert(sizeof(Shared) <= SHARED_ROOM, "plan.py reserves what follows the ring");

DEVICE u8* hidden_buffer(const Arguments& p, int parity) { return p.state + STATE_HEADER + parity * p.half; }

// TRACE=1, for tuning: clock stamps behind the two buffers, 16 places a block (`state` must be BLOCKS * 128 bytes longer than
// plan.py says). A later stamp of the same number overwrites an earlier one.
//   warp 0    0 started; 1 the launch before is over; 2 routes sorted; 3 first unit in shared memory; 4 W13 done;
//             6 h of the first stage of W2 seen; 7 W2 done; 8 out stored; where columns are tokens 11 and 12 the second and
//             the last unit in shared memory, 5 the first stage of W2, 13 h of the last one seen
//   producer  9 has asked for the first unit; 10 for everything
//   finisher  14 has stored h of the last unit
#ifndef TRACE
#define TRACE 0
#endif
DEVICE void stamp(const Arguments& p, int i, int thread = 0) {
    if (TRACE && threadIdx.x == thread) ((long long*)hidden_buffer(p, 2))[blockIdx.x * 16 + i] = clock64();
}

// 15: the multiprocessor's number, plus 1024.
DEVICE void stamp_processor(const Arguments& p) {
    const u32 id = multiprocessor();
    if (TRACE && threadIdx.x == 0) ((long long*)hidden_buffer(p, 2))[blockIdx.x * 16 + 15] = 1024 + id;
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

// A role's place in a ring of COUNT buffers of BYTES each: it goes round in step with the others, in the order in which buffers
// are filled.
template <int COUNT, u32 BYTES>
struct Place {
    u32 base, full, empty;
    int at = 0;
    u32 phase = 0;
    DEVICE_MEMBER u32 memory() const { return base + at * BYTES; }
    DEVICE_MEMBER u32 full_barrier() const { return full + at * 8; }
    DEVICE_MEMBER u32 empty_barrier() const { return empty + at * 8; }
    DEVICE_MEMBER void next() {
        if (++at == COUNT) at = 0, phase ^= 1;
    }
};
typedef Place<STAGES, STAGE_BYTES> Ring;                 // of stages
typedef Place<HIDDEN_BUFFERS, HIDDEN_BYTES> HiddenRing;  // of h of a stage of W2
DEVICE HiddenRing hidden_ring(Shared& s) {
    return {shared_address(&s.hidden[0][0]), shared_address(&s.hidden_full[0]), shared_address(&s.hidden_empty[0])};
}

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
