// Phase 1: units of W13 (copied by the producer, multiplied by the consumers, finished by the finishers).
#pragma once
#include "activate.cuh"
#include "block.cuh"

// Units that one set of weight scales serves: 128 rows of gate and of up, or of W13 (FP8).
constexpr int RELOAD_UNITS = SCALES_IN_RING ? UNITS : (GATED ? 16 : 8);

// Sum over the warps, activation, h to memory: 8 rows of a column are one vector, stored as one value.
// lane = (row of 8, quarter of the warps).
DEVICE void finish_column(const float* part, int column, u16* h, int lane) {
    const int g = lane & 7, quarter = lane >> 3;
    const float* from = part + g * 4 + (PAIRED ? column : (column & 1) * 32 + (column >> 1));
    float low = 0.f, high = 0.f;
#pragma unroll
    for (int w = 0; w < CONSUMERS / 4; ++w) {
        low += from[(4 * w + quarter) * PART];
        high += from[(4 * w + quarter) * PART + HALVES * 32];
    }
#pragma unroll
    for (int d = 8; d < 32; d *= 2) low += __shfl_xor_sync(~0u, low, d), high += __shfl_xor_sync(~0u, high, d);
    // Not gated: `high` is 8 more rows, which the second quarter takes.
    const float v = GATED ? activate(low, high) : activate(quarter ? high : low, 0.f);
    const uint4 value = hidden_value<1>(v, lane & 24);
    if (quarter < (GATED ? 1 : 2) && g == 0) store_relaxed(h + quarter * 8, value);
}

// A warp takes every FINISHERS-th column.
DEVICE void finish(Shared& s, const Work& work, u16* h, int finisher, int lane) {
    const Routes& routes = s.routes;
    int buffer = 0;
    u32 phase = 0;
    for (int i = 0; i < work.units; ++i) {
        const int unit = work.unit(i), d = unit / UNITS;
        const int first = COLUMN_IS_TOKEN ? d * MAX_M : routes.offset[d];
        const int count = COLUMN_IS_TOKEN ? MAX_M : routes.offset[d + 1] - first;
        const u32 members = COLUMN_IS_TOKEN ? routes.members[d] : 0;
        u16* const to = h + unit % UNITS * (GATED ? 8 : 16);
        for (int chunk = 0; chunk < count; chunk += 8) {
            barrier_wait(shared_address(&s.part_full[buffer]), phase);
            for (int column = finisher; column < min(8, count - chunk); column += FINISHERS)
                if (!COLUMN_IS_TOKEN || members >> column & 1)
                    finish_column(s.part[buffer], column, to + (u64)(first + chunk + column) * I, lane);
            warp_arrive(shared_address(&s.part_empty[buffer]), lane);
            if (++buffer == PARTIALS) buffer = 0, phase ^= 1;
        }
    }
}

// Columns of the tokens themselves: the same for every expert, and loaded before any is known.
DEVICE void load_token_columns(Columns& columns, const Arguments& p, int warp, int lane) {
    const int token = column_of(lane >> 2);
    load_columns(columns, p, token, token < p.tokens, warp, lane);
    load_column_scales(columns, p, 2 * (lane & 3), 2 * (lane & 3) + 1, p.tokens, warp);
}

// Where a consumer leaves its parts of a unit's sums, buffer after buffer.
struct Parts {
    u32 full, empty, memory;
    int buffer = 0;
    u32 phase = 0;
    DEVICE_MEMBER Parts(Shared& s, int warp, int lane)
        : full(kept(shared_address(&s.part_full[0]))),
          empty(full + PARTIALS * 8),
          memory(kept(shared_address(&s.part[0][warp * PART + lane]))) {}
    DEVICE_MEMBER void leave(const float (&acc)[SUMS], int lane) {
        barrier_wait(empty + buffer * 8, phase ^ 1);
#pragma unroll
        for (int i = 0; i < SUMS; ++i) store_shared_float(memory + buffer * (CONSUMERS * PART * 4) + i * 128, acc[i]);
        warp_arrive(full + buffer * 8, lane);
        if (++buffer == PARTIALS) buffer = 0, phase ^= 1;
    }
};

// Columns are tokens.
DEVICE void consume_units_of_tokens(Shared& s, const Arguments& p, const Work& work, Ring& ring, Columns& columns, int warp,
                                    int lane) {
    Parts parts(s, warp, lane);
    ask_unit_scales(columns, p, s.routes.expert, work, 0, warp);
    for (int i = 0; i < work.units; ++i, ring.next()) {
        take_weight_scales(columns);
        ask_unit_scales(columns, p, s.routes.expert, work, i + 1, warp);
        barrier_wait(ring.full_barrier(), ring.phase);
        if (i == 0) stamp(p, 3);
        if (i == 1) stamp(p, 11);
        if (i + 1 == work.units) stamp(p, 12);
        float acc[SUMS] = {};
        unit_product(acc, ring.memory(), columns, warp, lane);
        warp_arrive(ring.empty_barrier(), lane);
        parts.leave(acc, lane);
    }
}

// Columns are an expert's own tokens.
DEVICE void consume_units_of_lists(Shared& s, const Arguments& p, const Work& work, Ring& ring, Columns& columns, int warp,
                                   int lane) {
    const Routes& routes = s.routes;
    const int g = lane >> 2, t = lane & 3;
    Parts parts(s, warp, lane);
    int loaded = -1, weighed = -1;  // whose activations and scales are in registers
    int d = work.unit_first / UNITS - 1, within = UNITS;  // the expert, and the unit of it
    int first = 0, count = 0;                             // its columns
    for (int i = 0; i < work.units; ++i, ring.next()) {
        if (++within >= UNITS) {  // the next expert (or the first, somewhere in its units)
            ++d;
            within = i == 0 ? work.unit_first % UNITS : 0;
            first = routes.offset[d], count = routes.offset[d + 1] - first;
        }
        for (int chunk = 0; chunk < count; chunk += 8) {
            const u16* tokens = routes.token + first + chunk;
            if (loaded != first + chunk) {
                const int live = min(8, count - chunk);
                load_columns(columns, p, tokens[min(g, live - 1)], g < live, warp, lane);
                load_column_scales(columns, p, tokens[min(2 * t, live - 1)], tokens[min(2 * t + 1, live - 1)], p.tokens, warp);
                loaded = first + chunk, weighed = -1;
            }
            if (!SCALES_IN_RING && weighed != d * 256 + within / RELOAD_UNITS) {
                ask_weight_scales(columns, p, routes.expert[d], within, warp);
                take_weight_scales(columns);
                weighed = d * 256 + within / RELOAD_UNITS;
            }
            if (chunk == 0) barrier_wait(ring.full_barrier(), ring.phase);
            if (i == 0) stamp(p, 3);
            float acc[SUMS] = {};
            unit_product(acc, ring.memory(), columns, warp, lane);
            if (chunk + 8 >= count) warp_arrive(ring.empty_barrier(), lane);
            // The next expert's tokens: asked for two units ahead, so that the change does not wait for memory.
            if (within == UNITS - 3 && i + 3 < work.units && g < routes.offset[d + 2] - first - count)
                prefetch_columns(p, routes.token[first + count + g], warp, t);
            parts.leave(acc, lane);
        }
    }
}
