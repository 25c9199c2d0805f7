// Phase 1: units of W13 (copied by the producer, multiplied by the consumers, finished by the finishers).
#pragma once
#include "block.cuh"

DEVICE float activate(float gate, float up) {
    if (RELU2) {
        const float r = fmaxf(gate, 0.f);
        return GATED ? r * r * up : r * r;
    }
    const float v = gate / (1.f + __expf(-gate));
    return GATED ? v * up : v;
}

// Units that one set of weight scales serves: 128 rows of gate and of up, or of W13 (FP8).
constexpr int RELOAD_UNITS = SCALES_IN_RING ? UNITS : (GATED ? 16 : 8);

// Sum over the warps, activation, h to memory: 8 rows of a column are one vector, stored as one value.
// lane = (row of 8, quarter of the warps).
DEVICE void finish_column(const float* part, int column, u16* h, int lane) {
    const int g = lane & 7, quarter = lane >> 3;
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
    const float partner = __shfl_down_sync(~0u, v, HIDDEN_PARTNER);
    const u32 pair = HALF_H ? half_pair(v, partner) : bf16_pair(v, partner);
    u32 word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = __shfl_sync(~0u, pair, (lane & 24) + hidden_leader(i));
    if (word[0] == 0) word[0] = 0x80008000u;
    if (quarter < (GATED ? 1 : 2) && g == 0) store_relaxed(h + quarter * 8, make_uint4(word[0], word[1], word[2], word[3]));
}

// A warp takes every third column.
DEVICE void finish(Shared& s, const Work& work, u16* h, int finisher, int lane) {
    const Routes& routes = s.routes;
    int buffer = 0;
    u32 phase = 0;
    for (int unit = work.unit_first; unit < work.unit_last; ++unit) {
        const int d = unit / UNITS;
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
    load_columns(columns, p, lane >> 2, lane >> 2 < p.tokens, warp, lane);
    load_column_scales(columns, p, 2 * (lane & 3), 2 * (lane & 3) + 1, p.tokens, warp);
}

DEVICE void consume_units(Shared& s, const Arguments& p, const Work& work, Ring& ring, Columns& columns, int warp, int lane) {
    const Routes& routes = s.routes;
    const int g = lane >> 2, t = lane & 3;
    int loaded = -1, weighed = -1;  // whose activations and scales are in registers
    int buffer = 0;
    int d = work.unit_first / UNITS - 1, within = UNITS;  // the expert, and the unit of it
    int first = 0, count = COLUMN_IS_TOKEN ? 8 : 0;       // its columns
    u32 phase = 0;
    const u32 part_full = kept(shared_address(&s.part_full[0])), part_empty = part_full + PARTIALS * 8;
    const u32 part = kept(shared_address(&s.part[0][warp * PART + lane]));
    for (int unit = work.unit_first; unit < work.unit_last; ++unit, ring.next()) {
        if (++within >= UNITS) {  // the next expert (or the first, somewhere in its units)
            ++d;
            within = unit == work.unit_first ? unit % UNITS : 0;
            if (!COLUMN_IS_TOKEN) first = routes.offset[d], count = routes.offset[d + 1] - first;
        }
        for (int chunk = 0; chunk < count; chunk += 8) {
            const u16* tokens = routes.token + first + chunk;
            if (!COLUMN_IS_TOKEN && loaded != first + chunk) {
                const int live = min(8, count - chunk);
                load_columns(columns, p, tokens[min(g, live - 1)], g < live, warp, lane);
                load_column_scales(columns, p, tokens[min(2 * t, live - 1)], tokens[min(2 * t + 1, live - 1)], p.tokens, warp);
                loaded = first + chunk, weighed = -1;
            }
            if (!SCALES_IN_RING && weighed != d * 256 + within / RELOAD_UNITS) {
                load_weight_scales(columns, p, routes.expert[d], within, warp);
                weighed = d * 256 + within / RELOAD_UNITS;
            }
            if (chunk == 0) barrier_wait(ring.full_barrier(), ring.phase);
            if (unit == work.unit_first) stamp(p, 3);
            float acc[4] = {0.f, 0.f, 0.f, 0.f};
            unit_product(acc, ring.memory(), columns, warp, lane);
            if (chunk + 8 >= count) warp_arrive(ring.empty_barrier(), lane);
            // The next expert's tokens: asked for two units ahead, so that the change does not wait for memory.
            if (!COLUMN_IS_TOKEN && within == UNITS - 3 && unit + 3 < work.unit_last && g < routes.offset[d + 2] - first - count)
                prefetch_columns(p, routes.token[first + count + g], warp, t);
            barrier_wait(part_empty + buffer * 8, phase ^ 1);
#pragma unroll
            for (int i = 0; i < 4; ++i) store_shared_float(part + buffer * (CONSUMERS * PART * 4) + i * 128, acc[i]);
            warp_arrive(part_full + buffer * 8, lane);
            if (++buffer == PARTIALS) buffer = 0, phase ^= 1;
        }
    }
}
