// A MoE layer for one token, in one launch: what kernel.cuh does, arranged for latency. A block's whole share of the weights
// has room in shared memory (plan.py builds this where it has), so nothing is ever given back. h passes through the same two
// buffers of `state`.
//
//   producer   one warp: reads the routes, asks for units of W13, then for stages of W2
//   finisher   one warp: adds the consumers' parts of a unit, activates, stores h; clears what the launch before left
//   consumers  phase 1: a unit, k split over the warps
//              phase 2: a warp takes slot after slot, a block of 128 k of one expert, and all the block's rows. Each lane
//              asks for 16 bytes of h, and a warp waits for no other
//
// A route is an expert here: a token that lists one twice reads it twice.
#pragma once
#include "activate.cuh"
#include "inputs.cuh"
#include "spread.cuh"
#include "work.cuh"

static_assert(MAX_M == 1 && FINISHERS == 1 && COLUMN_IS_TOKEN && CONSUMERS % PIECES == 0);
DEVICE constexpr u32 round_up(u32 size) { return (size + 127) / 128 * 128; }
constexpr int UNITS_MOST = (TOP_K * UNITS + BLOCKS - 1) / BLOCKS, STAGES_MOST = (TOP_K + STAGE_EXPERTS - 1) / STAGE_EXPERTS;
constexpr u32 UNIT_ROOM = round_up(UNIT_SPACE);
constexpr u32 STAGE_ROOM = round_up(STAGE_EXPERTS * (SLOT_BYTES + SLOT_SCALES));
constexpr u32 WEIGHTS_ROOM = UNITS_MOST * UNIT_ROOM + STAGES_MOST * STAGE_ROOM;
static_assert(WEIGHTS_ROOM == STAGES * STAGE_BYTES, "plan.py reserves this");
constexpr int FULL_BARRIERS = UNITS_MOST * PIECES + STAGES_MOST * STAGE_BARRIERS, BARRIERS = FULL_BARRIERS + UNITS_MOST;

struct Shared {
    // Barriers; each is used once.
    u64 unit_full[UNITS_MOST][PIECES], stage_full[STAGES_MOST][STAGE_BARRIERS], part_full[UNITS_MOST];
    alignas(16) u8 x[CONSUMERS][X_ROOM];
    float part[UNITS_MOST][16 * CONSUMERS];  // the consumers' parts of each row of a unit
    float sums[CONSUMERS][OUT_ROWS];         // each warp's part of out
    int parity, distinct;
    float weight[TOP_K];  // of the routes
    u16 expert[TOP_K], route[TOP_K];  // of the routes whose id is in range, in order
};
static_assert(sizeof(Shared) <= SHARED_ROOM, "plan.py reserves what follows the weights");

constexpr int SUMS_ARE_WRITTEN = 1, ROUTES_ARE_LISTED = 2;  // named barriers: of the consumers, of all

// The routes whose id is in range, for the other warps.
DEVICE void list_routes(Shared& s, int id, u32 valid, int lane) {
    const int place = __popc(valid & ((1u << lane) - 1));
    if (id >= 0) s.expert[place] = id, s.route[place] = lane;
    if (lane == 0) s.distinct = __popc(valid);
    __syncwarp();
    named_arrive<ROUTES_ARE_LISTED, THREADS>();
}

// ---- producer
constexpr u32 EVERY_ROUTE = TOP_K == 32 ? ~0u : (1u << TOP_K) - 1;

template <int COUNT>
DEVICE void wait_for_all(u64 (&barriers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) barrier_wait(shared_address(&barriers[i]), 0);
}

// From the routes to the first copy everything waits: what does not depend on them is made ready before, barriers know their
// bytes (init_barriers), and the list comes after it.
DEVICE void produce(Shared& s, const Arguments& p, u32 base, int lane) {
    const u64 policy = streaming_policy();
    const UnitCopy copy = unit_copy(p, lane);
    const u32 to = settled(base + copy.to, lane), full = settled(shared_address(&s.unit_full[0][copy.piece]), lane);
    const u8* const first_from = settled(copy.of(0, blockIdx.x % UNITS), lane);
    const int first = settled(min((int)blockIdx.x / UNITS, TOP_K - 1), lane);  // its route, where every route counts
    const bool copies = settled(copy.bytes, lane) && blockIdx.x < TOP_K * UNITS;
    wait_for_predecessor();
    const int id = lane < TOP_K ? route_id(p, lane) : -1;
    const u32 valid = __ballot_sync(~0u, id >= 0);
    const u32 expert = __shfl_sync(~0u, id, first);
    if (valid == EVERY_ROUTE && copies) bulk_copy(to, first_from + (u64)expert * copy.expert, copy.bytes, full, policy);
    stamp(p, 9, PRODUCER * 32);
    list_routes(s, id, valid, lane);
    const int distinct = __popc(valid);
    const Work work = work_of(distinct);
    // At most DEPTH items are under way: what is asked for later would only slow down what is needed first.
    int landed = 0;
#pragma unroll 1
    for (int i = valid == EVERY_ROUTE; i < work.units; ++i) {
        const int unit = work.unit(i);
        const u8* const from = copy.of(s.expert[unit / UNITS], unit % UNITS);
        if (i >= DEPTH) wait_for_all(s.unit_full[landed++]);
        if (copy.bytes) bulk_copy(to + i * UNIT_ROOM, from, copy.bytes, full + i * PIECES * 8, policy);
        __syncwarp();
    }
    for (int step = 0; step < work.stages; ++step) {
        if (work.units + step >= DEPTH) {
            if (landed < work.units) wait_for_all(s.unit_full[landed]);
            else wait_for_all(s.stage_full[landed - work.units]);
            ++landed;
        }
        copy_slices(s.expert, distinct, p, work, step, base + UNITS_MOST * UNIT_ROOM + step * STAGE_ROOM,
                    shared_address(&s.stage_full[step][0]), policy, lane);
    }
}

// ---- finisher
// lane = (row of 16, half of the warps).
DEVICE void finish_unit(const float* part, u16* to, int lane) {
    const float* from = part + (lane >> 1) * CONSUMERS + (lane & 1) * (CONSUMERS / 2);
    float v = 0.f;
#pragma unroll
    for (int w = 0; w < CONSUMERS / 2; w += 2) v += from[w] + from[w + 1];
    v += __shfl_xor_sync(~0u, v, 1);
    const float up = __shfl_xor_sync(~0u, v, 16);
    v = activate(v, up);
    const uint4 value = hidden_value<2>(v, lane & 16);
    // Not gated: rows 8 to 15 are 8 more of h.
    if ((lane & 15) == 0 && (!GATED || lane < 16)) store_relaxed(to + lane / 2, value);
}

DEVICE void finish(Shared& s, const Work& work, u16* h, int lane) {
#pragma unroll 1  // what runs last has run before
    for (int i = 0; i < work.units; ++i) {
        const int unit = work.unit(i);
        const u32 at = settled(unit / UNITS * I + unit % UNITS * (GATED ? 8 : 16), lane);
        barrier_wait(shared_address(&s.part_full[i]), 0);
        finish_unit(s.part[i], h + at, lane);
    }
}

// ---- consumers
DEVICE void consume_units(Shared& s, const Arguments& p, const Work& work, u32 base, Columns& columns, int warp, int lane) {
    ask_unit_scales(columns, p, s.expert, work, 0, warp);
    for (int i = 0; i < work.units; ++i) {
        take_weight_scales(columns);
        ask_unit_scales(columns, p, s.expert, work, i + 1, warp);
        barrier_wait(shared_address(&s.unit_full[i][warp / (CONSUMERS / PIECES)]), 0);
        if (i == 0) stamp(p, 3);
        if (i == 1) stamp(p, 11);
        if (i + 1 == work.units) stamp(p, 12);
        float acc[SUMS] = {};
        unit_product(acc, base + i * UNIT_ROOM, columns, warp, lane);
        if ((lane & 3) == 0) {  // column 0
            float* const to = s.part[i] + (lane >> 2) * CONSUMERS + warp;
            to[0] = acc[0], to[8 * CONSUMERS] = acc[HALVES];
        }
        warp_arrive(shared_address(&s.part_full[i]), lane);
    }
}

// 16 bytes are stored as one value, whose first word is not 0.
DEVICE bool is_there(const uint4& v) { return v.x != 0; }

// FP8's scales of the rows of W2 in two slots.
struct PairScales {
    float of[2][ROW_BLOCKS];
    DEVICE_MEMBER void load(const Shared& s, const Arguments& p, const Work& work, int first, int slots) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int slot = first + i * CONSUMERS;
            if (!SCALES_IN_RING && slot < slots) load_block_scales(of[i], p, work, s.expert[slot / I_BLOCKS], slot % I_BLOCKS);
        }
    }
};

// `block_scale`: of the first two slots, asked for before phase 1. h is asked for when its turn comes, not ahead: a question
// that comes too early is in the way of what it waits for (docs/cuda.md).
DEVICE void consume_slots(Shared& s, const Arguments& p, const Work& work, const u16* h, u32 stages, PairScales& block_scale,
                          int slots, int warp, int lane) {
    h += spread_value(lane & 15) * 8;
    float total[ROW_BLOCKS] = {};
    for (int first = warp; first < slots; first += 2 * CONSUMERS) {
        if (first != warp) block_scale.load(s, p, work, first, slots);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int slot = first + i * CONSUMERS;
            if (slot >= slots) break;
            const int d = slot / I_BLOCKS, block = slot % I_BLOCKS;
            const float weight = s.weight[s.route[d]];
            barrier_wait(shared_address(&s.stage_full[d / STAGE_EXPERTS][d % STAGE_EXPERTS]), 0);
            if (slot < CONSUMERS) stamp(p, 5);
            uint4 v = load_relaxed(h + slot * 128);
            Slot weights;
            load_slot(weights, stages + d / STAGE_EXPERTS * STAGE_ROOM, d % STAGE_EXPERTS, block, lane);
            float scale[ROW_BLOCKS][2];
            spread_scales(scale, weights, block_scale.of[i], 2 * (lane & 1));
            Spin spin;
            while (__any_sync(~0u, !is_there(v))) {
                spin.once();
                if (!is_there(v)) v = load_relaxed(h + slot * 128);
            }
            if (slot < CONSUMERS) stamp(p, 6);
            stamp(p, 13);
            spread_product(total, weights, scale, v, weight, lane);
        }
    }
    // Columns 4 to 7 are columns 0 to 3 again.
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r) {
        total[r] += __shfl_xor_sync(~0u, total[r], 1);
        if ((lane & 3) == 0) s.sums[warp][r * 8 + (lane >> 2)] = total[r];
    }
}

DEVICE void store_out(const Shared& s, const Arguments& p, const Work& work, int thread) {
    if (thread >= work.row_blocks * 8) return;
    float v = 0.f;
#pragma unroll
    for (int w = 0; w < CONSUMERS; ++w) v += s.sums[w][thread];
    p.out[work.row_first * 8 + thread] = HALF_X ? half_of(v) : bf16_of(v);
}

// The warps share the barriers out, while the launch before is still at work; those of units learn of their bytes.
DEVICE void init_barriers(Shared& s, int warp, int lane) {
    if (lane == 0)
        for (int i = warp; i < BARRIERS; i += WARPS) {
            const u32 barrier = shared_address(&s.unit_full[0][0]) + i * 8;
            barrier_init(barrier, i < FULL_BARRIERS ? 1 : CONSUMERS * ARRIVALS);
            if (i < UNITS_MOST * PIECES) barrier_expect(barrier, (UNIT_BYTES + UNIT_SCALES) / PIECES);
        }
    fence_barrier_init();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    moe_decode(const u8* x, const float* xs, const u8* w13, const u8* s13, const u8* w2, const u8* s2, const void* ids,
               const void* weights, u16* out, u8* state, u64 half, int tokens, int x_stride, int xs_token, int xs_group,
               int out_stride) {
    extern __shared__ __align__(128) u8 memory[];
    Shared& s = *(Shared*)(memory + WEIGHTS_ROOM);
    const Arguments p{x, xs, w13, s13, w2, s2, ids, weights, out, state, half, tokens, x_stride, xs_token, xs_group, out_stride};
    const int thread = threadIdx.x, warp = kept(thread >> 5), lane = kept(thread & 31);
    const u32 base = kept(shared_address(memory));
    stamp(p, 0);
    stamp_processor(p);
    init_barriers(s, warp, lane);
    if (warp == FINISHER) prefetch_inputs(p, lane);
    __syncthreads();
    if (warp == PRODUCER) {
        produce(s, p, base, lane);
        stamp(p, 10, PRODUCER * 32);
        return;
    }
    wait_for_predecessor();
    stamp(p, 1);
    Columns columns;
    AskedX asked;
    if (warp == FINISHER) {
        if (lane == 0) s.parity = take_parity(p);
        if (lane < TOP_K) s.weight[lane] = route_weight(p, lane);
        __syncwarp();
    } else {
        asked.ask(columns, p, warp, lane);  // before the weights, which would hold it up
        __syncwarp();
    }
    named_sync<ROUTES_ARE_LISTED, THREADS>();
    stamp(p, 2);
    const Work work = work_of(s.distinct);
    u16* const h = (u16*)hidden_buffer(p, s.parity);
    if (warp == FINISHER) {
        finish(s, work, h, lane);
        stamp(p, 14, FINISHER * 32);
        clear_old(p, s.parity, TOP_K * (I / 8), lane);
        return;
    }
    let_successor_start();
    asked.take(columns, shared_address(s.x[warp]), lane);  // after the producer's first steps, which it would hold up
    const int slots = work.stages ? s.distinct * I_BLOCKS : 0;
    PairScales block_scale;
    block_scale.load(s, p, work, warp, slots);
    consume_units(s, p, work, base, columns, warp, lane);
    stamp(p, 4);
    consume_slots(s, p, work, h, base + UNITS_MOST * UNIT_ROOM, block_scale, slots, warp, lane);
    stamp(p, 7);
    named_sync<SUMS_ARE_WRITTEN, CONSUMER_THREADS>();
    store_out(s, p, work, thread);
    stamp(p, 8);
}
