// Phase 2: a warp takes one block of 128 k of one expert, all out rows of this thread block, and waits for that part of h.
// The consumers are TEAMS teams that take turns at the stages; in a stage, a warp for each block of k of each expert.
//
// Where columns are tokens (routes.cuh), the columns of tokens that do not want the expert are left out and the sums stay in
// registers until the end. Else the sums lie in shared memory, found by token.
#pragma once
#include "block.cuh"

// When a turn's h is asked for, and what is done first. EARLY (few tokens, few stages): W2 is in shared memory before h is
// there, so its values become fragments while h is waited for. LOOK_AHEAD (lists of tokens, and FP8): h of the next turn is
// on its way during this one's products. Without LOOK_AHEAD it is asked for behind them: that takes fewer registers.
constexpr bool EARLY = COLUMN_IS_TOKEN && STAGE_EXPERTS > 1;
constexpr bool LOOK_AHEAD = !EARLY && (!COLUMN_IS_TOKEN || !SCALES_IN_RING);

// What a warp does in one go: its block of k of one expert against 8 columns.
struct Turn {
    int step, expert;  // which stage of W2, and place in the list of experts
    u32 members;       // COLUMN_IS_TOKEN: the expert's tokens (bits)
    int first, count;  // else: its routes,
    int chunk;         // and which 8 of them are the columns
    DEVICE_MEMBER bool works() const { return COLUMN_IS_TOKEN ? members != 0 : count != 0; }
};

DEVICE Turn turn_at(const Routes& routes, int step, int slot, int distinct) {
    Turn turn = {step, step * STAGE_EXPERTS + slot, 0, 0, 0, 0};
    if (turn.expert >= distinct) return turn;
    if (COLUMN_IS_TOKEN) turn.members = routes.members[turn.expert];
    else turn.first = routes.offset[turn.expert], turn.count = routes.offset[turn.expert + 1] - turn.first;
    return turn;
}
DEVICE Turn turn_after(const Turn& turn, const Routes& routes, int slot, int distinct) {
    if (COLUMN_IS_TOKEN || turn.chunk + 8 >= turn.count) return turn_at(routes, turn.step + TEAMS, slot, distinct);
    Turn same = turn;
    same.chunk += 8;
    return same;
}

// The row of h of a column. One without a token reads the row of another, which is there: no select, and what comes out is
// not used.
DEVICE int row_of(const Turn& turn, int column) {
    if (COLUMN_IS_TOKEN) return turn.expert * MAX_M + (turn.members >> column & 1 ? column : __ffs(turn.members) - 1);
    return turn.first + min(turn.chunk + column, turn.count - 1);
}
DEVICE void ask_hidden(Hidden& f, const u16* h, const Turn& turn, int lane) {
    const u16* row = h + (u32)row_of(turn, lane >> 2) * I;
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

// This warp's sums: [row block][column 2t, 2t + 1] in registers, or [token][row] in shared memory.
struct Sums {
    float kept[ROW_BLOCKS][2];
    u32 memory;
};

DEVICE void add_up(Sums& sums, const Routes& routes, const Turn& turn, const float (&acc)[ROW_BLOCKS][2], int lane) {
    const int t = lane & 3;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        const int column = 2 * t + c;
        if (COLUMN_IS_TOKEN) {
            if (!(turn.members >> column & 1)) continue;
            const float w = routes.dense[turn.expert][column];
#pragma unroll
            for (int r = 0; r < ROW_BLOCKS; ++r) sums.kept[r][c] = fmaf(w, acc[r][c], sums.kept[r][c]);
        } else {
            const int at = turn.chunk + column;
            if (at >= turn.count) continue;
            const float w = routes.weight[turn.first + at];
            const u32 to = sums.memory + routes.token[turn.first + at] * (OUT_ROWS * 4);
            float old[ROW_BLOCKS];
#pragma unroll
            for (int r = 0; r < ROW_BLOCKS; ++r) old[r] = load_shared_float(to + r * 32);
#pragma unroll
            for (int r = 0; r < ROW_BLOCKS; ++r) store_shared_float(to + r * 32, fmaf(w, acc[r][c], old[r]));
        }
    }
}

DEVICE void load_block_scales(float (&scale)[ROW_BLOCKS], const Arguments& p, const Work& work, int expert, int block) {
    const float* scales = (const float*)p.s2 + (u64)expert * (H_BLOCKS * I_BLOCKS) + block;
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r) scale[r] = scales[min(work.row_first + r, OUT_BLOCKS - 1) / 16 * I_BLOCKS];
}

DEVICE void consume_slots(Shared& s, const Arguments& p, const Work& work, Ring& ring, const u16* hidden_rows, int warp,
                          int lane) {
    const Routes& routes = s.routes;
    const int team = warp / STAGE_WARPS, slot = warp % STAGE_WARPS / I_BLOCKS, block = warp % I_BLOCKS;
    const int distinct = team < TEAMS ? routes.distinct : 0;
    const u16* h = hidden_rows + block * 128 + hidden_offset(0, lane & 3);
    Sums sums = {};
    sums.memory = kept(shared_address(&s.sums[warp][0][lane >> 2]));
    Hidden hidden, next;
    float block_scale[ROW_BLOCKS];
    Turn turn = turn_at(routes, team, slot, distinct);
    if (turn.works()) ask_hidden(LOOK_AHEAD ? next : hidden, h, turn, lane);
    for (int step = 0; step < work.stages; ++step, ring.next()) {
        bool landed = false;  // this stage: waited for
        while (turn.works() && turn.step == step) {
            if (!SCALES_IN_RING) load_block_scales(block_scale, p, work, routes.expert[turn.expert], block);
            const Turn now = turn;
            Slot weights;
            if (LOOK_AHEAD) hidden = next;
            if (EARLY) {
                if (!landed) barrier_wait(ring.full_barrier(), ring.phase);
                if (step == 0) stamp(p, 5);
                load_slot(weights, ring.memory(), slot, block, lane);
            }
            Spin spin;
            while (!__all_sync(~0u, is_there(hidden))) {
                spin.once();
                ask_hidden(hidden, h, now, lane);
            }
            if (step == 0) stamp(p, 6);
            if (LOOK_AHEAD) {
                turn = turn_after(now, routes, slot, distinct);
                if (turn.works()) ask_hidden(next, h, turn, lane);
            }
            if (!EARLY) {
                if (!landed) barrier_wait(ring.full_barrier(), ring.phase);
                load_slot(weights, ring.memory(), slot, block, lane);
            }
            landed = true;
            float acc[ROW_BLOCKS][2] = {};
            slot_product(acc, weights, block_scale, hidden);
            if (!LOOK_AHEAD) {
                turn = turn_after(now, routes, slot, distinct);
                if (turn.works()) ask_hidden(hidden, h, turn, lane);
            }
            add_up(sums, routes, now, acc, lane);
        }
        if (!landed) barrier_wait(ring.full_barrier(), ring.phase);
        warp_arrive(ring.empty_barrier(), lane);
    }
    if (COLUMN_IS_TOKEN)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int token = 2 * (lane & 3) + c;
            if (token >= MAX_M) continue;
#pragma unroll
            for (int r = 0; r < ROW_BLOCKS; ++r)
                store_shared_float(sums.memory + token * (OUT_ROWS * 4) + r * 32, sums.kept[r][c]);
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
