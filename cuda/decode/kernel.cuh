// A whole MoE layer for M <= MAX_M tokens in one launch. One thread block a multiprocessor, all resident at once.
//
//   producer   one warp: copies units of W13, then slices of W2, through one ring of STAGES stages (bulk copies)
//   consumers  phase 1: a unit (8 gate rows and 8 up rows of one expert, or 16 rows where there is no gate) against its
//              tokens, k split over the warps
//              phase 2: the out rows of this block: a warp takes one block of 128 k of one expert, all of the rows,
//              and adds weight * W2 h to its own partial sums; in the end the block adds those and stores out
//   finishers  one warp, or three: add the consumers' parts of a unit, activate, store h to global memory in 16-bit floats;
//              then clear what the launch before left
//   gatherers  where columns are tokens: bring h of a stage of W2 from all blocks into shared memory (hidden.cuh)
//
// Every block sorts the routes for itself, so two tokens that share an expert read it once and no launch comes before.
// h is its own flag: 8 rows of a token are one 16-byte value, whose first word is 0 while it is not there (a pair of zeros
// is stored as (-0, -0)). Two buffers alternate by launch, and each launch clears what the one before it wrote (state.cuh).
// No atomics on data and a fixed order of every sum: equal inputs give equal bits.
#pragma once
#include "slots.cuh"
#include "units.cuh"

constexpr int PIECES = COLUMN_IS_TOKEN ? 8 : 1;  // copies of half a unit of FP8; of few tokens rows (fp8_one.cuh says why)
constexpr u32 HALF = UNIT_BYTES / 2, PIECE = HALF / PIECES;

// What a lane reads of one unit of every expert: `weights` and `scales` are expert 0's, the others lie whole experts
// further on. All lanes make one and call `copy`.
struct UnitSource {
    const u8 *weights, *scales;
    DEVICE_MEMBER UnitSource(const Arguments& p, int within, int lane) {
        if (SCALES_IN_RING) {
            weights = p.w13 + (u64)within * UNIT_BYTES, scales = p.s13 + (u64)within * UNIT_SCALES;
        } else {
            // Rows as the checkpoint has them. Half a unit: its gate rows, and its up rows, I further down (or 16 rows).
            const u32 half = lane / PIECES, at = lane % PIECES * PIECE;
            weights = p.w13 + (u64)within * (GATED ? HALF : UNIT_BYTES) + half * (GATED ? (u64)UNITS * HALF : HALF) + at;
        }
    }
    DEVICE_MEMBER void copy(int expert, u32 to, u32 full, u64 policy, int lane) const {
        const u8* const from = weights + (u64)expert * (UNITS * UNIT_BYTES);
        if (lane == 0) barrier_expect(full, UNIT_BYTES + UNIT_SCALES);
        __syncwarp();
        if (SCALES_IN_RING) {
            if (lane == 0) bulk_copy(to, from, UNIT_BYTES, full, policy);
            if (lane == 1) bulk_copy(to + UNIT_BYTES, scales + (u64)expert * (UNITS * UNIT_SCALES), UNIT_SCALES, full, policy);
        } else if (lane < 2 * PIECES) {
            bulk_copy(to + lane * PIECE, from, PIECE, full, policy);
        }
        __syncwarp();
    }
};

// Named barriers: the consumers; all warps (ONE_WARP); and the producer with the warps that make its barriers.
constexpr int SUMS_ARE_WRITTEN = 1, ROUTES_ARE_LISTED = 2, RING_IS_READY = 3;
constexpr int READY_WARPS = STAGES + 3;

// ONE_WARP, the producer: the list of experts, and the first copy. That waits for the routes, and all the rest for it, so what
// does not depend on them is made ready before, and the list comes after it.
DEVICE void start_copies(Routes& r, const Arguments& p, const Ring& ring, int lane) {
    const u64 policy = streaming_policy();
    UnitSource first(p, blockIdx.x % UNITS, lane);
    first.weights = settled(first.weights, lane);
    const u32 to = settled(ring.memory(), lane), full = settled(ring.full_barrier(), lane);
    const int place = settled(blockIdx.x / UNITS, lane);  // of its expert in the list
    wait_for_predecessor();
    const int id = id_of_lane(p, lane);
    const Mention mention(id, lane);
    const u32 wanted = __ballot_sync(~0u, mention.leads && mention.place_of(lane) == place);
    const int expert = __shfl_sync(~0u, id, __ffs(wanted) - 1 & 31);
    if (wanted) {
        first.copy(expert, to, full, policy, lane);
        stamp(p, 9, PRODUCER * 32);
    }
    list_experts(r, mention, id, lane);
    named_arrive<ROUTES_ARE_LISTED, THREADS>();
}

// At most DEPTH stages are under way: what is asked for later would only slow down what is needed first.
DEVICE void produce(Shared& s, const Arguments& p, const Work& work, Ring ring, int lane) {
    const Routes& routes = s.routes;
    const u64 policy = streaming_policy();
    Ring landed = ring;
    const int items = work.units + work.stages;
    const bool begun = ONE_WARP && work.units;  // the first is under way
    if (begun) ring.next();
    for (int item = begun; item < items; ++item, ring.next()) {
        if (item == 1 && ONE_WARP) named_sync<RING_IS_READY, READY_WARPS * 32>();  // others' barriers: not needed before
        if (item >= DEPTH) {
            barrier_wait(landed.full_barrier(), landed.phase);
            landed.next();
            barrier_wait(ring.empty_barrier(), ring.phase ^ 1);
        }
        if (GATHERERS && item == max(1, work.units - 2) && lane == 0) barrier_arrive(shared_address(&s.nearly_there));
        if (item < work.units) {
            const int unit = work.unit(item);
            const UnitSource source(p, unit % UNITS, lane);
            source.copy(routes.expert[unit / UNITS], ring.memory(), ring.full_barrier(), policy, lane);
        } else {
            copy_slices(routes.expert, routes.distinct, p, work, item - work.units, ring.memory(), ring.full_barrier(), policy,
                        lane);
        }
        if (item == 0) stamp(p, 9, PRODUCER * 32);
    }
    if (items <= 1) {
        if (ONE_WARP) named_sync<RING_IS_READY, READY_WARPS * 32>();
        if (GATHERERS && lane == 0) barrier_arrive(shared_address(&s.nearly_there));
    }
}

// A barrier takes some 70 clocks to make, so the warps share them: the producer makes those that its first copies need, warp
// w those of stage w, two behind the producer those of h and of the partial sums.
static_assert(FINISHERS + GATHERERS >= 3, "the first three warps behind the producer have work at the start");
static_assert(STAGES <= CONSUMERS, "a warp for each stage's barrier");
DEVICE void init_barriers(Shared& s, int warp, int lane) {
    if (warp != PRODUCER && warp >= STAGES && warp != FINISHER + 1 && warp != FINISHER + 2) return;
    if (lane == 0) {
        if (warp == PRODUCER) {
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) barrier_init(shared_address(&s.full[i]), 1);
        } else if (warp < STAGES) {
            if (warp >= DEPTH) barrier_init(shared_address(&s.full[warp]), 1);
            barrier_init(shared_address(&s.empty[warp]), CONSUMERS * ARRIVALS);
        } else if (warp == FINISHER + 1) {
            if constexpr (GATHERERS != 0) {  // (ptxas does not survive a count of 0)
                barrier_init(shared_address(&s.nearly_there), 1);
#pragma unroll
                for (int i = 0; i < HIDDEN_BUFFERS; ++i) {
                    barrier_init(shared_address(&s.hidden_full[i]), GATHERERS * ARRIVALS);
                    barrier_init(shared_address(&s.hidden_empty[i]), CONSUMERS * ARRIVALS);
                }
            }
        } else {
#pragma unroll
            for (int i = 0; i < PARTIALS; ++i) {
                barrier_init(shared_address(&s.part_full[i]), CONSUMERS * ARRIVALS);
                barrier_init(shared_address(&s.part_empty[i]), FINISHERS * ARRIVALS);
            }
        }
        fence_barrier_init();
    }
    __syncwarp();
    if (ONE_WARP && warp != PRODUCER) named_arrive<RING_IS_READY, READY_WARPS * 32>();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    moe_decode(const u8* x, const float* xs, const u8* w13, const u8* s13, const u8* w2, const u8* s2, const void* ids,
               const void* weights, u16* out, u8* state, u64 half, int tokens, int x_stride, int xs_token, int xs_group,
               int out_stride) {
    extern __shared__ __align__(128) u8 memory[];
    Shared& s = *(Shared*)(memory + STAGES * STAGE_BYTES);
    const Arguments p{x, xs, w13, s13, w2, s2, ids, weights, out, state, half, tokens, x_stride, xs_token, xs_group, out_stride};
    const int thread = threadIdx.x, warp = kept(thread >> 5), lane = kept(thread & 31);
    const u32 base = kept(shared_address(memory));
    Ring ring{base, base + STAGES * STAGE_BYTES, base + STAGES * STAGE_BYTES + STAGES * 8};
    stamp(p, 0);
    stamp_processor(p);
    init_barriers(s, warp, lane);
    if (!COLUMN_IS_TOKEN && warp < CONSUMERS)
        for (int i = thread; i < CONSUMERS * MAX_M * OUT_ROWS; i += CONSUMER_THREADS) (&s.sums[0][0][0])[i] = 0.f;
    Columns columns;
    if (ONE_WARP) {
        // Side by side: the producer starts to copy and lists the experts, the warp behind it the rest of the routes, the
        // next takes the ticket, and the consumers load the activations.
        if (warp == PRODUCER) {
            start_copies(s.routes, p, ring, lane);
        } else {
            if (warp == FINISHER + 1) prefetch_inputs(p, lane);
            wait_for_predecessor();
            stamp(p, 1);
            if (warp == FINISHER) list_members(s.routes, p, lane);
            if (warp == FINISHER + 1 && lane == 0) s.routes.parity = take_parity(p);
            if (warp < CONSUMERS) load_token_columns(columns, p, warp, lane);
            __syncwarp();
            named_sync<ROUTES_ARE_LISTED, THREADS>();
        }
    } else {
        wait_for_predecessor();
        stamp(p, 1);
        if (thread == THREADS - 1) s.routes.parity = take_parity(p);
        sort_in_a_block(s.routes, p, thread);
        if (COLUMN_IS_TOKEN && warp < CONSUMERS) load_token_columns(columns, p, warp, lane);
    }
    stamp(p, 2);
    const Work work = work_of(s.routes.distinct);
    if (warp >= CONSUMERS) {
        if (warp == PRODUCER) {
            produce(s, p, work, ring, lane);
            stamp(p, 10, PRODUCER * 32);
        } else {
            u16* const h = (u16*)hidden_buffer(p, s.routes.parity);
            if constexpr (GATHERERS != 0) {
                if (warp >= GATHERER) return gather_hidden(s, work, h, thread - GATHERER * 32);
            }
            finish(s, work, h, warp - FINISHER, lane);
            stamp(p, 14, FINISHER * 32);
            const int rows = COLUMN_IS_TOKEN ? s.routes.distinct * MAX_M : p.tokens * TOP_K;
            clear_old(p, s.routes.parity, rows * (I / 8), thread - FINISHER * 32);
        }
        return;
    }
    const u16* const h = (const u16*)hidden_buffer(p, s.routes.parity);
    let_successor_start();
    if constexpr (COLUMN_IS_TOKEN) consume_units_of_tokens(s, p, work, ring, columns, warp, lane);
    else consume_units_of_lists(s, p, work, ring, columns, warp, lane);
    stamp(p, 4);
    if constexpr (COLUMN_IS_TOKEN) consume_slots_of_tokens(s, p, work, ring, warp, lane);
    else consume_slots_of_lists(s, p, work, ring, h, warp, lane);
    stamp(p, 7);
    named_sync<SUMS_ARE_WRITTEN, CONSUMER_THREADS>();
    store_out(s, p, work, thread);
    stamp(p, 8);
}
