// What the roles of a thread block share: its memory, its ring, its part of the work, aids for tools.
#pragma once
#include "routes.cuh"
#include "work.cuh"

// A stage of the ring is a unit of W13, or STAGE_EXPERTS slots.
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
