// Phase 2: a warp takes one block of 128 k of one expert, all out rows of this thread block, and waits for h of it (of the
// whole stage, where columns are tokens).
// The consumers are TEAMS teams that take turns at the stages; in a stage, a warp for each block of k of each expert.
//
// Where columns are tokens (shape.cuh), the columns of tokens that do not want the expert are left out and the sums stay in
// registers until the end. Else the sums lie in shared memory, found by token.
#pragma once
#include "hidden.cuh"

// Columns are tokens.
DEVICE void consume_slots_of_tokens(Shared& s, const Arguments& p, const Work& work, Ring& ring, int warp, int lane) {
    const Routes& routes = s.routes;
    const int team = warp / STAGE_WARPS, slot = warp % STAGE_WARPS / I_BLOCKS, block = warp % I_BLOCKS;
    const int g = lane >> 2, t = lane & 3, distinct = team < TEAMS ? routes.distinct : 0;
    HiddenRing h = hidden_ring(s);
    float sums[ROW_BLOCKS][HALVES] = {};
    float block_scale[ROW_BLOCKS], next_scale[ROW_BLOCKS];
    if (!SCALES_IN_RING && team * STAGE_EXPERTS + slot < distinct)
        load_block_scales(next_scale, p, work, routes.expert[team * STAGE_EXPERTS + slot], block);
    for (int step = 0; step < work.stages; ++step, ring.next(), h.next()) {
        const int d = step * STAGE_EXPERTS + slot;
        const bool turn = (TEAMS == 1 || team == step % TEAMS) && d < distinct;
        // A warp that has nothing to do waits as well: it must not give a stage back that is not full.
        barrier_wait(ring.full_barrier(), ring.phase);
        FewSlot weights;
        u32 members = 0;
        float weight[HALVES];
        if (turn) {
            load_few_slot(weights, ring.memory(), slot, block, lane);
            members = routes.members[d] >> HALVES * t;
#pragma unroll
            for (int c = 0; c < HALVES; ++c) weight[c] = routes.dense[d][(HALVES * t + c) % MAX_M];
        }
        if (step == 0) stamp(p, 5);
        barrier_wait(h.full_barrier(), h.phase);
        if (step == 0) stamp(p, 6);
        if (step + 1 == work.stages) stamp(p, 13);
        if (turn) {
            if (!SCALES_IN_RING) {
#pragma unroll
                for (int r = 0; r < ROW_BLOCKS; ++r) block_scale[r] = next_scale[r];
                if (d + TEAMS * STAGE_EXPERTS < distinct)
                    load_block_scales(next_scale, p, work, routes.expert[d + TEAMS * STAGE_EXPERTS], block);
            }
            FewHidden hidden;
            take_hidden(hidden, h.memory() + slot * MAX_M * HIDDEN_ROW, HIDDEN_ROW, block, lane);
            float acc[ROW_BLOCKS][HALVES] = {};
            few_product(acc, weights, block_scale, hidden);
#pragma unroll
            for (int c = 0; c < HALVES; ++c) {
                if (!(members >> c & 1)) continue;
#pragma unroll
                for (int r = 0; r < ROW_BLOCKS; ++r) sums[r][c] = fmaf(weight[c], acc[r][c], sums[r][c]);
            }
        }
        __syncwarp();
        if (STRICT || lane == 0) barrier_arrive(ring.empty_barrier()), barrier_arrive(h.empty_barrier());
    }
    const u32 memory = shared_address(&s.sums[warp][0][g]);
#pragma unroll
    for (int c = 0; c < HALVES; ++c) {
        const int token = HALVES * t + c;
        if (token >= MAX_M) continue;
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; ++r) store_shared_float(memory + token * (OUT_ROWS * 4) + r * 32, sums[r][c]);
    }
}

// ---- columns are an expert's own tokens: the sums lie in shared memory, found by token

// What a warp does in one go: its block of k of one expert against 8 columns.
struct Turn {
    int step;          // which stage of W2
    int expert;        // place in the list of experts
    int first, count;  // its routes,
    int chunk;         // and which 8 of them are the columns
};

DEVICE Turn turn_at(const Routes& routes, int step, int slot, int distinct) {
    Turn turn = {step, step * STAGE_EXPERTS + slot, 0, 0, 0};
    if (turn.expert < distinct)
        turn.first = routes.offset[turn.expert], turn.count = routes.offset[turn.expert + 1] - turn.first;
    return turn;
}
DEVICE Turn turn_after(const Turn& turn, const Routes& routes, int slot, int distinct) {
    if (turn.chunk + 8 >= turn.count) return turn_at(routes, turn.step + TEAMS, slot, distinct);
    Turn same = turn;
    same.chunk += 8;
    return same;
}

// A column without a token reads the row of another, which is there: no select, and what comes out is not used.
DEVICE void ask_hidden(Hidden& f, const u16* h, const Turn& turn, int lane) {
    const u16* row = h + (u32)(turn.first + min(turn.chunk + (lane >> 2), turn.count - 1)) * I;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const uint4 v = load_relaxed(row + hidden_offset(j, 0));
        f.b[2 * j][0] = v.x, f.b[2 * j][1] = v.y, f.b[2 * j + 1][0] = v.z, f.b[2 * j + 1][1] = v.w;
    }
}
// A vector of h is stored as one value whose first word is not 0.
DEVICE bool is_there(const Hidden& f) {
    return min(min(f.b[0][0], f.b[2][0]), min(f.b[4][0], f.b[6][0])) != 0;
}

DEVICE void add_up(u32 sums, const Routes& routes, const Turn& turn, const float (&acc)[ROW_BLOCKS][2], int lane) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        const int at = turn.chunk + 2 * (lane & 3) + c;
        if (at >= turn.count) continue;
        const float w = routes.weight[turn.first + at];
        const u32 to = sums + routes.token[turn.first + at] * (OUT_ROWS * 4);
        float old[ROW_BLOCKS];
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; ++r) old[r] = load_shared_float(to + r * 32);
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; ++r) store_shared_float(to + r * 32, fmaf(w, acc[r][c], old[r]));
    }
}

// h of the next turn is on its way during this one's products.
DEVICE void consume_slots_of_lists(Shared& s, const Arguments& p, const Work& work, Ring& ring, const u16* hidden_rows,
                                   int warp, int lane) {
    const Routes& routes = s.routes;
    const int team = warp / STAGE_WARPS, slot = warp % STAGE_WARPS / I_BLOCKS, block = warp % I_BLOCKS;
    const int distinct = team < TEAMS ? routes.distinct : 0;
    const u16* h = hidden_rows + block * 128 + hidden_offset(0, lane & 3);
    const u32 sums = kept(shared_address(&s.sums[warp][0][lane >> 2]));
    Hidden next;
    float block_scale[ROW_BLOCKS];
    Turn turn = turn_at(routes, team, slot, distinct);
    if (turn.count) ask_hidden(next, h, turn, lane);
    for (int step = 0; step < work.stages; ++step, ring.next()) {
        bool landed = false;  // this stage: waited for
        while (turn.count && turn.step == step) {
            if (!SCALES_IN_RING) load_block_scales(block_scale, p, work, routes.expert[turn.expert], block);
            const Turn now = turn;
            Hidden hidden = next;
            Spin spin;
            while (!__all_sync(~0u, is_there(hidden))) {
                spin.once();
                ask_hidden(hidden, h, now, lane);
            }
            if (step == 0) stamp(p, 6);
            turn = turn_after(now, routes, slot, distinct);
            if (turn.count) ask_hidden(next, h, turn, lane);
            if (!landed) barrier_wait(ring.full_barrier(), ring.phase);
            landed = true;
            Slot weights;
            load_slot(weights, ring.memory(), slot, block, lane);
            float acc[ROW_BLOCKS][2] = {};
            slot_product(acc, weights, block_scale, hidden);
            add_up(sums, routes, now, acc, lane);
        }
        if (!landed) barrier_wait(ring.full_barrier(), ring.phase);
        warp_arrive(ring.empty_barrier(), lane);
    }
}

// The last sum, over the warps. Rows past this block's last one hold whatever was there: they are not stored.
DEVICE void store_out(const Shared& s, const Arguments& p, const Work& work, int thread) {
    for (int i = thread; i < p.tokens * OUT_ROWS; i += CONSUMER_THREADS) {
        const int token = i / OUT_ROWS, row = i % OUT_ROWS;
        if (row >= work.row_blocks * 8) continue;
        float v = 0.f;
#pragma unroll
        for (int w = 0; w < TEAMS * STAGE_WARPS; ++w) v += s.sums[w][token][row];
        p.out[(u64)token * p.out_stride + work.row_first * 8 + row] = HALF_X ? half_of(v) : bf16_of(v);
    }
}
