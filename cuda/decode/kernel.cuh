// A whole MoE layer for M <= MAX_M tokens in one launch. One thread block a multiprocessor, all resident at once.
//
//   producer   one warp: copies units of W13, then slices of W2, through one ring of STAGES stages (bulk copies)
//   consumers  phase 1: a unit (8 gate rows and 8 up rows of one expert, or 16 rows where there is no gate) against its
//              tokens, k split over the warps
//              phase 2: the out rows of this block: a warp takes one block of 128 k of one expert, all of the rows,
//              and adds weight * W2 h to its own partial sums; in the end the block adds those and stores out
//   finishers  three warps: add the consumers' parts of a unit, activate, store h to global memory in 16-bit floats; then
//              clear what the launch before left
//
// Every block sorts the routes for itself, so two tokens that share an expert read it once and no launch comes before.
// h is its own flag: 8 rows of a token are one 16-byte value, whose first word is 0 while it is not there (a pair of zeros
// is stored as (-0, -0)). Two buffers alternate by launch, and each launch clears what the one before it wrote. `state` is
// 256 bytes {u64 ticket; u32 used[2]: how many 16-byte values of each buffer were written} and two buffers of `half`
// bytes, all zero before the first launch.
// No atomics on data and a fixed order of every sum: equal inputs give equal bits.
#pragma once
#include "slots.cuh"
#include "units.cuh"

DEVICE void copy_unit(const Arguments& p, int expert, int within, u32 to, u32 full, u64 policy) {
    barrier_expect(full, UNIT_BYTES + UNIT_SCALES);
    const u64 unit = (u64)expert * UNITS + within;
    if (SCALES_IN_RING) {
        bulk_copy(to, p.w13 + unit * UNIT_BYTES, UNIT_BYTES, full, policy);
        bulk_copy(to + UNIT_BYTES, p.s13 + unit * UNIT_SCALES, UNIT_SCALES, full, policy);
        return;
    }
    // Rows as the checkpoint has them: the gate rows, and the up rows I further down.
    constexpr u32 PIECE = UNIT_BYTES / 2;
    const u8* low = p.w13 + (u64)expert * UNITS * UNIT_BYTES + (u64)within * (GATED ? PIECE : UNIT_BYTES);
    bulk_copy(to, low, PIECE, full, policy);
    bulk_copy(to + PIECE, low + (GATED ? (u64)UNITS * PIECE : PIECE), PIECE, full, policy);
}

DEVICE void copy_slices(const Routes& routes, const Arguments& p, const Work& work, int step, u32 to, u32 full, u64 policy,
                        int lane) {
    const int experts = min(STAGE_EXPERTS, routes.distinct - step * STAGE_EXPERTS);
    if (lane == 0) barrier_expect(full, experts * work.row_blocks * (ROW_BLOCK_BYTES + ROW_BLOCK_SCALES));
    __syncwarp();
    if (lane < experts) {
        const u64 row = (u64)routes.expert[step * STAGE_EXPERTS + lane] * OUT_BLOCKS + work.row_first;
        bulk_copy(to + lane * SLOT_BYTES, p.w2 + row * ROW_BLOCK_BYTES, work.row_blocks * ROW_BLOCK_BYTES, full, policy);
        if (SCALES_IN_RING)
            bulk_copy(to + STAGE_EXPERTS * SLOT_BYTES + lane * SLOT_SCALES, p.s2 + row * ROW_BLOCK_SCALES,
                      work.row_blocks * ROW_BLOCK_SCALES, full, policy);
    }
    __syncwarp();
}

// Named barriers: the consumers; all warps (ONE_WARP); and the producer with the warps that make its barriers.
constexpr int SUMS_ARE_WRITTEN = 1, ROUTES_ARE_LISTED = 2, RING_IS_READY = 3;
constexpr int READY_WARPS = STAGES + 2;

// At most DEPTH stages are under way: what is asked for later would only slow down what is needed first.
DEVICE void produce(const Routes& routes, const Arguments& p, const Work& work, Ring ring, int lane) {
    const u64 policy = streaming_policy();
    Ring landed = ring;
    const int units = work.unit_last - work.unit_first, items = units + work.stages;
    // The ring is empty: the lanes ask for the first units together, before the others' barriers are ready.
    const int filled = min(min(STAGES, DEPTH), units);
    if (lane < filled) {
        const int unit = work.unit_first + lane;
        copy_unit(p, routes.expert[unit / UNITS], unit % UNITS, ring.base + lane * STAGE_BYTES, ring.full + lane * 8, policy);
    }
    __syncwarp();
    if (ONE_WARP) named_sync<RING_IS_READY, READY_WARPS * 32>();
    ring.stage = filled % STAGES, ring.phase = filled / STAGES;
    for (int item = filled; item < items; ++item, ring.next()) {
        if (item >= DEPTH) {
            barrier_wait(landed.full_barrier(), landed.phase);
            landed.next();
        }
        barrier_wait(ring.empty_barrier(), ring.phase ^ 1);
        if (item >= units) {
            copy_slices(routes, p, work, item - units, ring.memory(), ring.full_barrier(), policy, lane);
        } else if (lane == 0) {
            const int unit = work.unit_first + item;
            copy_unit(p, routes.expert[unit / UNITS], unit % UNITS, ring.memory(), ring.full_barrier(), policy);
        }
        __syncwarp();
    }
}

// Clear what the launch before this one wrote; the next one writes there.
DEVICE void clear_old(const Arguments& p, int parity, int distinct, int thread) {
    u32* const used = (u32*)(p.state + 8);
    uint4* const old = (uint4*)hidden_buffer(p, parity ^ 1);
    const u32 values = used[parity ^ 1];
    for (u32 i = blockIdx.x * FINISHERS * 32 + thread; i < values; i += BLOCKS * FINISHERS * 32) old[i] = make_uint4(0, 0, 0, 0);
    const u32 rows = COLUMN_IS_TOKEN ? distinct * MAX_M : p.tokens * TOP_K;
    if (blockIdx.x == 0 && thread == 0) used[parity] = rows * (I * 2 / 16);
}

// What a launch reads first, on its way into L2 while the launch before is still at work; from every block, since the
// translations of the addresses are kept by each multiprocessor.
DEVICE void prefetch_inputs(const Arguments& p, int lane) {
    const u32 ids = p.tokens * TOP_K * (ID_64 ? 8 : 4), weights = p.tokens * TOP_K * (ROUTE_WEIGHT == 2 ? 4 : 2);
    for (u32 at = lane * 128; at < ids; at += 32 * 128) prefetch_l2((const u8*)p.ids + at);
    for (u32 at = lane * 128; at < weights; at += 32 * 128) prefetch_l2((const u8*)p.weights + at);
    if (lane == 0) prefetch_l2(p.state), prefetch_l2(p.x);
}

// A barrier takes some 70 clocks to make, so the warps share them: the producer makes those that its first copies need, warp
// w the one that gives stage w back, a finisher those of the partial sums.
static_assert(STAGES <= CONSUMERS, "a warp for each stage's barrier");
DEVICE void init_barriers(Shared& s, int warp, int lane) {
    if (warp != PRODUCER && warp >= STAGES && warp != FINISHER + 2) return;
    if (lane == 0) {
        if (warp == PRODUCER) {
#pragma unroll
            for (int i = 0; i < STAGES; ++i) barrier_init(shared_address(&s.full[i]), 1);
        } else if (warp < STAGES) {
            barrier_init(shared_address(&s.empty[warp]), CONSUMERS * ARRIVALS);
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

// Which of the two buffers this launch uses: every block takes a ticket, and a launch is BLOCKS tickets.
DEVICE int take_parity(const Arguments& p) { return (int)(atomicAdd((u64*)p.state, 1ULL) / BLOCKS & 1); }

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
    init_barriers(s, warp, lane);
    if (!COLUMN_IS_TOKEN && warp < CONSUMERS)
        for (int i = thread; i < CONSUMERS * MAX_M * OUT_ROWS; i += CONSUMER_THREADS) (&s.sums[0][0][0])[i] = 0.f;
    Columns columns;
    if (ONE_WARP) {
        // Side by side: the producer lists the experts and starts to copy at once, a finisher the rest of the routes, another
        // takes the ticket, and the consumers load the activations.
        if (warp == FINISHER + 1) prefetch_inputs(p, lane);
        wait_for_predecessor();
        stamp(p, 1);
        if (warp == PRODUCER) {
            list_experts(s.routes, p, lane);
            named_arrive<ROUTES_ARE_LISTED, THREADS>();
        } else {
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
            stamp(p, 9, PRODUCER * 32);
            produce(s.routes, p, work, ring, lane);
            stamp(p, 10, PRODUCER * 32);
        } else {
            finish(s, work, (u16*)hidden_buffer(p, s.routes.parity), warp - FINISHER, lane);
            clear_old(p, s.routes.parity, s.routes.distinct, thread - FINISHER * 32);
        }
        return;
    }
    const u16* const h = (const u16*)hidden_buffer(p, s.routes.parity);
    let_successor_start();
    consume_units(s, p, work, ring, columns, warp, lane);
    stamp(p, 4);
    consume_slots(s, p, work, ring, h, warp, lane);
    stamp(p, 7);
    named_sync<SUMS_ARE_WRITTEN, CONSUMER_THREADS>();
    store_out(s, p, work, thread);
    stamp(p, 8);
}
