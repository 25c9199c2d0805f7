// Where columns are tokens: h of a stage of W2, brought into shared memory by warps that do nothing else (with 4-bit weights
// they split it into bytes: u4_few.cuh). A consumer that waited for it in global memory would stand still for the latency of
// L2 in every stage.
//
// HIDDEN_BUFFERS stages have room. Rows of pairs that do not occur hold whatever was there: such a column's result is not used,
// and a column's values reach no other's.
#pragma once
#include "block.cuh"

constexpr int GATHER_THREADS = GATHERERS ? GATHERERS * 32 : 1;
constexpr int ROW_VALUES = I / 8;  // 16-byte values of a row
// Values of a thread in a stage.
constexpr int LOADS = GATHERERS ? (STAGE_EXPERTS * ROW_VALUES + GATHER_THREADS - 1) / GATHER_THREADS : 1;

// A thread's value of one expert of every stage, and where it goes.
struct Fetch {
    const u32* members_of;
    const u16* from;
    u32 to;
    int value, mine;  // experts of this slot of the stage: step * STAGE_EXPERTS < mine
    DEVICE_MEMBER void begin(const Routes& routes, const u16* h, int i) {
        const int slot = i / ROW_VALUES;
        value = i % ROW_VALUES;
        members_of = routes.members + slot;
        from = h + slot * MAX_M * I + value * 8;
        to = slot * MAX_M * HIDDEN_ROW;
        mine = i < STAGE_EXPERTS * ROW_VALUES ? routes.distinct - slot : 0;
    }
};
// What is asked for at once: of every value, the lowest of the tokens that are left (bits).
struct Asked {
    u32 left[LOADS];
    uint4 v[LOADS];
    DEVICE_MEMBER bool missing(int n) const { return left[n] && v[n].x == 0; }
    DEVICE_MEMBER void ask(const Fetch (&fetch)[LOADS], int step, int n) {
        v[n] = load_relaxed(fetch[n].from + (step * STAGE_EXPERTS * MAX_M + __ffs(left[n]) - 1) * I);
    }
    DEVICE_MEMBER void ask_first(const Fetch (&fetch)[LOADS], int step, int stages) {
#pragma unroll
        for (int n = 0; n < LOADS; ++n) {
            const int d = step * STAGE_EXPERTS;
            left[n] = d < fetch[n].mine && step < stages ? fetch[n].members_of[d] : 0;
            if (left[n]) ask(fetch, step, n);
        }
    }
    DEVICE_MEMBER void ask_again(const Fetch (&fetch)[LOADS], int step) {
#pragma unroll
        for (int n = 0; n < LOADS; ++n)
            if (missing(n)) ask(fetch, step, n);
    }
    DEVICE_MEMBER bool complete() const {  // in the whole warp
        bool gap = false;
#pragma unroll
        for (int n = 0; n < LOADS; ++n) gap |= missing(n);
        return !__any_sync(~0u, gap);
    }
};

// Nanoseconds between two questions for what is not there yet: they are in the way of the weights, and of h itself.
constexpr int PAUSE = 200;

// `thread`: of the gatherers. The lanes of a warp stay together: where each waited for its own value, the rest of the loop
// would run once for each group of lanes. Values of the next stage are asked for before this one's are waited for.
DEVICE void gather_hidden(Shared& s, const Work& work, const u16* h, int thread) {
    if (work.stages == 0) return;
    const int lane = thread & 31;
    HiddenRing ring = hidden_ring(s);
    Fetch fetch[LOADS];
#pragma unroll
    for (int n = 0; n < LOADS; ++n) fetch[n].begin(s.routes, h, thread + n * GATHER_THREADS);
    barrier_wait(shared_address(&s.nearly_there), 0);
    Asked now, next;
    now.ask_first(fetch, 0, work.stages);
    for (int step = 0; step < work.stages; ++step, ring.next()) {
        next.ask_first(fetch, step + 1, work.stages);
        barrier_wait(ring.empty_barrier(), ring.phase ^ 1);
        for (;;) {
            Spin spin;
            while (!now.complete()) {
                spin.once();
                __nanosleep(PAUSE);
                now.ask_again(fetch, step);
            }
            u32 more = 0;
#pragma unroll
            for (int n = 0; n < LOADS; ++n) {
                const u32 row = fetch[n].to + (__ffs(now.left[n]) - 1) * HIDDEN_ROW;
                keep_hidden(ring.memory() + row, fetch[n].value, now.v[n], now.left[n] != 0, lane);
                now.left[n] &= now.left[n] - 1, more |= now.left[n];
            }
            if (!__any_sync(~0u, more)) break;
#pragma unroll
            for (int n = 0; n < LOADS; ++n)
                if (now.left[n]) now.ask(fetch, step, n);
        }
        warp_arrive(ring.full_barrier(), lane);
        now = next;
    }
}
