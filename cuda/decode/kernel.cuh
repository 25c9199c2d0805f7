// A whole MoE layer for M <= MAX_M tokens in one launch. One thread block a multiprocessor, all resident at once.
//
//   producer   one warp: copies units of W13, then slices of W2, through one ring of STAGES stages (bulk copies)
//   consumers  phase 1: a unit (8 gate rows + 8 up rows of one expert) against its tokens, k split over the warps
//              phase 2: the out rows of this block: a warp takes one block of 128 k of one expert, all of the rows,
//              and adds weight * W2 h to its own partial sums; in the end the block adds those and stores out
//   finishers  three warps: add the consumers' parts of a unit, activate, store h (bf16) to global memory
//
// Every block sorts the routes for itself, so two tokens that share an expert read it once and no launch comes before.
// h is its own flag: 0 is "not there yet" (a pair of zeros is stored as (-0, -0)), the two buffers alternate by launch,
// and each launch clears what the one before it wrote. `state` is 256 bytes {u64 ticket; u32 used[2]} and two buffers
// of `half` bytes, all zero before the first launch.
// No atomics on data and a fixed order of every sum: equal inputs give equal bits.
#pragma once
#include "routes.cuh"

constexpr int RELOAD_UNITS = SCALES_IN_RING ? UNITS : (GATED ? 16 : 8);
constexpr u32 SLOT_BYTES = ROW_BLOCKS * ROW_BLOCK_BYTES, SLOT_SCALES = ROW_BLOCKS * ROW_BLOCK_SCALES;
constexpr int PART = 4 * 32 + 1;  // one word more, so that the finishers' lanes fall on 32 banks

struct Shared {
    u64 full[STAGES], empty[STAGES], part_full[PARTIALS], part_empty[PARTIALS];
    float part[PARTIALS][CONSUMERS * PART];
    float sums[CONSUMERS][MAX_M][OUT_ROWS];
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
    __device__ __forceinline__ u32 memory() const { return base + stage * STAGE_BYTES; }
    __device__ __forceinline__ u32 full_barrier() const { return full + stage * 8; }
    __device__ __forceinline__ u32 empty_barrier() const { return empty + stage * 8; }
    __device__ __forceinline__ void next() {
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

DEVICE void copy_slices(const Routes& routes, const Arguments& p, const Work& work, int step, u32 to, u32 full, u64 policy, int lane) {
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

// At most DEPTH stages are under way: what is asked for later would only slow down what is needed first.
DEVICE void produce(const Routes& routes, const Arguments& p, const Work& work, Ring ring, int lane) {
    const u64 policy = streaming_policy();
    Ring landed = ring;
    const int units = work.unit_last - work.unit_first, items = units + work.stages;
    // The ring is empty: the lanes ask for the first units together.
    const int filled = min(min(STAGES, DEPTH), units);
    if (lane < filled) {
        const int unit = work.unit_first + lane;
        copy_unit(p, routes.expert[unit / UNITS], unit % UNITS, ring.base + lane * STAGE_BYTES, ring.full + lane * 8, policy);
    }
    __syncwarp();
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

DEVICE float activate(float gate, float up) {
    if (RELU2) {
        const float r = fmaxf(gate, 0.f);
        return GATED ? r * r * up : r * r;
    }
    const float v = gate / (1.f + __expf(-gate));
    return GATED ? v * up : v;
}

// Sum over the warps, activation, h to memory. A warp takes every other column; lane = (row of 8, quarter of the warps).
DEVICE void finish_unit(const float* part, u16* h, int count, int finisher, int lane) {
    const int g = lane & 7, quarter = lane >> 3;
    for (int column = finisher; column < count; column += FINISHERS) {
        const float* from = part + (column & 1) * 32 + g * 4 + (column >> 1);
        float low = 0.f, high = 0.f;
#pragma unroll
        for (int w = 0; w < CONSUMERS / 4; ++w) {
            low += from[(4 * w + quarter) * PART];
            high += from[(4 * w + quarter) * PART + 64];
        }
#pragma unroll
        for (int d = 8; d < 32; d *= 2) low += __shfl_xor_sync(~0u, low, d), high += __shfl_xor_sync(~0u, high, d);
        // Not gated: `high` is 8 more rows, which the second quarter takes.
        const float v = GATED ? activate(low, high) : activate(quarter ? high : low, 0.f);
        const float other = __shfl_down_sync(~0u, v, HIDDEN_PARTNER);
        if (quarter < (GATED ? 1 : 2) && hidden_leads(g)) {
            u32 pair = bf16_pair(v, other);
            if (pair == 0) pair = 0x80008000u;
            store_relaxed(h + (u64)column * I + quarter * 8 + hidden_word(g) * 2, pair);
        }
    }
}

DEVICE void finish(Shared& s, const Work& work, u16* h, int finisher, int lane) {
    int buffer = 0;
    u32 phase = 0;
    for (int unit = work.unit_first; unit < work.unit_last; ++unit) {
        const int d = unit / UNITS, within = unit % UNITS;
        const int first = s.routes.offset[d], count = s.routes.offset[d + 1] - first;
        for (int chunk = 0; chunk < count; chunk += 8) {
            barrier_wait(shared_address(&s.part_full[buffer]), phase);
            u16* to = h + (u64)(first + chunk) * I + within * (GATED ? 8 : 16);
            finish_unit(s.part[buffer], to, min(8, count - chunk), finisher, lane);
            warp_arrive(shared_address(&s.part_empty[buffer]), lane);
            if (++buffer == PARTIALS) buffer = 0, phase ^= 1;
        }
    }
}

DEVICE void consume_units(Shared& s, const Arguments& p, const Work& work, Ring& ring, int warp, int lane) {
    const Routes& routes = s.routes;
    Columns columns;
    int loaded = -1, buffer = 0, d = -1, within = UNITS, first = 0, count = 0;
    u32 phase = 0;
    const u32 part_full = kept(shared_address(&s.part_full[0])), part_empty = part_full + PARTIALS * 8;
    const u32 part = kept(shared_address(&s.part[0][warp * PART + lane]));
    d = work.unit_first / UNITS - 1, within = UNITS;
    for (int unit = work.unit_first; unit < work.unit_last; ++unit, ring.next()) {
        if (++within >= UNITS) {  // the next expert (or the first, somewhere in its units)
            ++d;
            within = unit == work.unit_first ? unit % UNITS : 0;
            first = routes.offset[d], count = routes.offset[d + 1] - first;
        }
        for (int chunk = 0; chunk < count; chunk += 8) {
            // One token alone has the same columns for every expert (their scales apart).
            const int key = ((SCALES_IN_RING && p.tokens == 1 ? 0 : d) * 8 + chunk / 8) * 256 + within / RELOAD_UNITS;
            if (key != loaded) {
                load_columns(columns, p, routes.token + first + chunk, min(8, count - chunk), routes.expert[d], within, warp, lane);
                loaded = key;
            }
            if (chunk == 0) barrier_wait(ring.full_barrier(), ring.phase);
            if (unit == work.unit_first) stamp(p, 3);
            float acc[4] = {0.f, 0.f, 0.f, 0.f};
            unit_product(acc, ring.memory(), columns, warp, lane);
            if (chunk + 8 >= count) warp_arrive(ring.empty_barrier(), lane);
            // The next expert's tokens: asked for two units ahead, so that the change does not wait for memory.
            if (within == UNITS - 3 && unit + 3 < work.unit_last)
                prefetch_columns(p, routes.token + first + count, routes.offset[d + 2] - first - count, warp, lane);
            barrier_wait(part_empty + buffer * 8, phase ^ 1);
#pragma unroll
            for (int i = 0; i < 4; ++i) store_shared(part + buffer * (CONSUMERS * PART * 4) + i * 128, acc[i]);
            warp_arrive(part_full + buffer * 8, lane);
            if (++buffer == PARTIALS) buffer = 0, phase ^= 1;
        }
    }
}

// What a warp does with one stage of W2: its block of k of one expert against up to 8 of the expert's tokens.
struct Turn {
    int step, first, count, chunk;
    u32 sum[2];  // where the columns 2t and 2t + 1 are added up
    float weight[2];
};
DEVICE void look_up(Turn& turn, const Routes& routes, u32 sums, int lane) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        const int at = turn.chunk + 2 * (lane & 3) + c;
        const bool live = at < turn.count;
        turn.sum[c] = 0;
        if (live) turn.weight[c] = routes.weight[turn.first + at], turn.sum[c] = sums + routes.token[turn.first + at] * (OUT_ROWS * 4);
    }
}
DEVICE void turn_to(Turn& turn, const Routes& routes, int step, int slot, int distinct) {
    const int d = step * STAGE_EXPERTS + slot;
    turn.step = step, turn.count = 0, turn.chunk = 0;
    if (d < distinct) turn.first = routes.offset[d], turn.count = routes.offset[d + 1] - turn.first;
}
// Lanes without a token read the last one's row: their columns are not used, and no select is needed.
DEVICE void ask_hidden(Hidden& f, const u16* h, const Turn& turn, int lane) {
    const u16* row = h + (u32)(turn.first + min(turn.chunk + (lane >> 2), turn.count - 1)) * I;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const uint4 v = load_relaxed(row + hidden_offset(j, 0));
        f.b[2 * j][0] = v.x, f.b[2 * j][1] = v.y, f.b[2 * j + 1][0] = v.z, f.b[2 * j + 1][1] = v.w;
    }
}
DEVICE bool is_there(const Hidden& f) {
    u32 least = ~0u;
#pragma unroll
    for (int i = 0; i < 8; ++i) least = min(least, min(f.b[i][0], f.b[i][1]));
    return least != 0;
}

DEVICE void consume_slots(Shared& s, const Arguments& p, const Work& work, Ring& ring, const u16* hidden_rows, int warp, int lane) {
    const Routes& routes = s.routes;
    const int team = warp / STAGE_WARPS, slot = warp % STAGE_WARPS / I_BLOCKS, block = warp % I_BLOCKS;
    const int distinct = team < TEAMS ? routes.distinct : 0;
    const u32 sums = kept(shared_address(&s.sums[warp][0][lane >> 2]));
    const u16* h = hidden_rows + block * 128 + hidden_offset(0, lane & 3);
    Hidden next;
    Turn turn;
    turn_to(turn, routes, team, slot, distinct);
    look_up(turn, routes, sums, lane);
    if (turn.count) ask_hidden(next, h, turn, lane);
    for (int step = 0; step < work.stages; ++step, ring.next()) {
        bool waited = false;
        while (turn.step == step && turn.count) {
            const Turn now = turn;
            Hidden hidden = next;
            float block_scale[ROW_BLOCKS];
            if (!SCALES_IN_RING) {
                const float* scales = (const float*)p.s2 + (u64)routes.expert[step * STAGE_EXPERTS + slot] * (H_BLOCKS * I_BLOCKS) + block;
#pragma unroll
                for (int r = 0; r < ROW_BLOCKS; ++r) block_scale[r] = scales[min(work.row_first + r, OUT_BLOCKS - 1) / 16 * I_BLOCKS];
            }
            Spin spin;
            while (!__all_sync(~0u, is_there(hidden))) {
                spin.once();
                ask_hidden(hidden, h, now, lane);
            }
            if (step == 0) stamp(p, 5);
            // What comes next is asked for before this is worked on.
            if (now.chunk + 8 < now.count) turn.chunk += 8;
            else turn_to(turn, routes, step + TEAMS, slot, distinct);
            if (turn.count) ask_hidden(next, h, turn, lane);
            if (!waited) barrier_wait(ring.full_barrier(), ring.phase);
            waited = true;
            if (step == 0) stamp(p, 6);
            float acc[ROW_BLOCKS][2] = {};
            slot_product(acc, ring.memory(), slot, block, block_scale, hidden, lane);
            look_up(turn, routes, sums, lane);
#pragma unroll
            for (int c = 0; c < 2; ++c)
                if (now.sum[c]) {
                    float old[ROW_BLOCKS];
#pragma unroll
                    for (int r = 0; r < ROW_BLOCKS; ++r) old[r] = load_shared_float(now.sum[c] + r * 32);
#pragma unroll
                    for (int r = 0; r < ROW_BLOCKS; ++r) store_shared(now.sum[c] + r * 32, old[r] + now.weight[c] * acc[r][c]);
                }
        }
        if (!waited) barrier_wait(ring.full_barrier(), ring.phase);
        if (turn.step == step) turn_to(turn, routes, step + TEAMS, slot, distinct);
        warp_arrive(ring.empty_barrier(), lane);
    }
}

DEVICE void store_out(const Shared& s, const Arguments& p, const Work& work, int thread) {
    const int rows = work.row_blocks * 8;
    for (int i = thread; i < p.tokens * rows; i += CONSUMER_THREADS) {
        const int token = i / rows, row = i % rows;
        float v = 0.f;
#pragma unroll
        for (int w = 0; w < TEAMS * STAGE_WARPS; ++w) v += s.sums[w][token][row];
        p.out[(u64)token * p.out_stride + work.row_first * 8 + row] = HALF_X ? half_of(v) : bf16_of(v);
    }
}

// Clear what the launch before this one wrote; the next one writes there.
DEVICE void clear_old(const Arguments& p, int parity, int thread) {
    u32* const used = (u32*)(p.state + 8);
    uint4* const old = (uint4*)(p.state + 256 + (parity ^ 1) * p.half);
    const u32 words = used[parity ^ 1];
    for (u32 i = blockIdx.x * CONSUMER_THREADS + thread; i < words; i += BLOCKS * CONSUMER_THREADS) old[i] = make_uint4(0, 0, 0, 0);
    if (blockIdx.x == 0 && thread == 0) used[parity] = (u32)((u64)p.tokens * TOP_K * I * 2 / 16);
}

DEVICE void init_barriers(Shared& s, int lane) {
    for (int i = lane; i < STAGES; i += 32) {
        barrier_init(shared_address(&s.full[i]), 1);
        barrier_init(shared_address(&s.empty[i]), CONSUMERS * ARRIVALS);
    }
    if (lane < PARTIALS) {
        barrier_init(shared_address(&s.part_full[lane]), CONSUMERS * ARRIVALS);
        barrier_init(shared_address(&s.part_empty[lane]), FINISHERS * ARRIVALS);
    }
    fence_barrier_init();
    __syncwarp();
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
    if (warp == PRODUCER) init_barriers(s, lane);
    if (warp < CONSUMERS)
        for (int i = thread; i < CONSUMERS * MAX_M * OUT_ROWS; i += CONSUMER_THREADS) (&s.sums[0][0][0])[i] = 0.f;
    if (ONE_WARP) {
        // The producer sorts and starts to copy at once; the finishers sort the weights and take the ticket meanwhile.
        wait_for_predecessor();
        stamp(p, 1);
        if (warp == PRODUCER) {
            sort_in_a_warp(s.routes, p, lane, false);
            named_arrive<2, THREADS>();
        } else {
            if (warp == FINISHER) sort_in_a_warp(s.routes, p, lane, true);
            if (warp == FINISHER + 1 && lane == 0) s.routes.parity = take_parity(p);
            named_sync<2, THREADS>();
        }
    } else {
        wait_for_predecessor();
        stamp(p, 1);
        if (thread == THREADS - 1) s.routes.parity = take_parity(p);
        sort_in_a_block(s.routes, p, thread);
    }
    stamp(p, 2);
    const Work work = work_of(s.routes.distinct);
    if (warp >= CONSUMERS) {
        if (warp == PRODUCER) {
            stamp(p, 9, PRODUCER * 32);
            produce(s.routes, p, work, ring, lane);
            stamp(p, 10, PRODUCER * 32);
        } else {
            finish(s, work, (u16*)(state + 256 + s.routes.parity * half), warp - FINISHER, lane);
        }
        return;
    }
    u16* const h = (u16*)(state + 256 + s.routes.parity * half);
    let_successor_start();
    consume_units(s, p, work, ring, warp, lane);
    stamp(p, 4);
    clear_old(p, s.routes.parity, thread);
    consume_slots(s, p, work, ring, h, warp, lane);
    stamp(p, 7);
    named_sync<1, CONSUMER_THREADS>();
    store_out(s, p, work, thread);
    stamp(p, 8);
}
