// Sorting the routes by expert, inside the kernel: which experts are needed, and for each the tokens that want it and their
// weights. An id out of range is dropped; an expert that a token lists twice is one route with the sum of the weights.
#pragma once
#include "inputs.cuh"

constexpr int ROUTES = MAX_M * TOP_K;
constexpr int MOST_DISTINCT = ROUTES < E ? ROUTES : E;
constexpr bool ONE_WARP = COLUMN_IS_TOKEN && ROUTES <= 32;  // a lane a route: no barrier among warps
static_assert(ONE_WARP || E <= THREADS, "sort_in_a_block has a thread for each expert; plan.py refuses more");

// What a variant does not use is one element, so that the code that would use it compiles.
struct Routes {
    int parity;  // not of the routes: which buffer of h this launch uses
    // What sort_in_a_block works with: tokens that want an expert (bits), routes as they came, sums of the warps.
    u64 mask[ONE_WARP ? 1 : E];
    float raw_weight[ONE_WARP ? 1 : ROUTES];
    int id[ONE_WARP ? 1 : ROUTES];
    int scan[THREADS / 32 + 1];
    // The result: the list of experts. The other arrays are indexed by place in it.
    u16 expert[MOST_DISTINCT];
    int distinct;
    // COLUMN_IS_TOKEN: tokens that want an expert (bits), and their weights (of other tokens whatever was there)
    u32 members[COLUMN_IS_TOKEN ? MOST_DISTINCT : 1];
    float dense[COLUMN_IS_TOKEN ? MOST_DISTINCT : 1][COLUMN_IS_TOKEN ? MAX_M : 1];
    // else: weights and tokens, expert after expert, and where an expert's begin
    float weight[COLUMN_IS_TOKEN ? 1 : ROUTES];
    int offset[COLUMN_IS_TOKEN ? 1 : MOST_DISTINCT + 1];
    u16 token[COLUMN_IS_TOKEN ? 1 : ROUTES];
};

// The lanes that hold the same id as this one. (A vote for each bit: `match` takes a round for each value.)
DEVICE u32 lanes_with(int id) {
    u32 same = __ballot_sync(~0u, id >= 0);
#pragma unroll
    for (int bit = 1; bit < E; bit *= 2) {
        const u32 set = __ballot_sync(~0u, id & bit);
        same &= id & bit ? set : ~set;
    }
    return id >= 0 ? same : 0;
}

// ONE_WARP: a lane's route in the list of experts, which is in order of first mention.
struct Mention {
    u32 same;     // the lanes with this one's expert
    bool leads;   // this is the first of them
    u32 leaders;  // the lanes that are
    DEVICE_MEMBER explicit Mention(int id, int lane)
        : same(lanes_with(id)), leads(same && (same & ((1u << lane) - 1)) == 0), leaders(__ballot_sync(~0u, leads)) {}
    DEVICE_MEMBER int place_of(int lane) const { return __popc(leaders & ((1u << lane) - 1)); }  // of a leader, in the list
};
DEVICE int id_of_lane(const Arguments& p, int lane) { return lane < p.tokens * TOP_K ? route_id(p, lane) : -1; }

// The producer: the list of experts, and nothing more: all wait for it.
DEVICE void list_experts(Routes& r, const Mention& mention, int id, int lane) {
    if (mention.leads) r.expert[mention.place_of(lane)] = id;
    if (lane == 0) r.distinct = __popc(mention.leaders);
    __syncwarp();
}

// A finisher meanwhile: each expert's tokens and weights, in the same order. It reads the ids for itself: to be told them by
// the producer gained nothing.
DEVICE void list_members(Routes& r, const Arguments& p, int lane) {
    constexpr u32 ONE_TOKEN = TOP_K == 32 ? ~0u : (1u << TOP_K) - 1;  // the lanes of token 0
    const float raw = lane < p.tokens * TOP_K ? route_weight(p, lane) : 0.f;
    const Mention mention(id_of_lane(p, lane), lane);
    const int token = lane / TOP_K;
    float sum = 0.f;
#pragma unroll
    for (int k = 0; k < TOP_K; ++k) {
        const int from = (token * TOP_K + k) & 31;  // & 31: lanes behind the last token, which do not count
        const float w = __shfl_sync(~0u, raw, from);
        if (mention.same >> from & 1) sum += w;
    }
    // A token that lists the expert twice: its first lane writes.
    const int leader = __ffs(mention.same) - 1, mine = __ffs(mention.same & ONE_TOKEN << (token * TOP_K & 31)) - 1;
    if (lane != mine) return;
    const int d = mention.place_of(leader);
    u32 members = 0;
#pragma unroll
    for (int i = 0; i < MAX_M; ++i)
        if (mention.same & ONE_TOKEN << (i * TOP_K & 31)) members |= 1u << i;
    if (lane == leader) r.members[d] = members;
    r.dense[d][token] = sum;
}

// Not ONE_WARP: all warps sort together; the list is in the order of the ids.
DEVICE void sort_in_a_block(Routes& r, const Arguments& p, int thread) {
    const int routes = p.tokens * TOP_K;
    for (int e = thread; e < E; e += THREADS) r.mask[e] = 0;
    wait_for_predecessor();  // again, which costs nothing: the kernel has waited before it calls
    for (int i = thread; i < routes; i += THREADS) r.id[i] = route_id(p, i), r.raw_weight[i] = route_weight(p, i);
    __syncthreads();
    for (int i = thread; i < routes; i += THREADS)
        if (r.id[i] >= 0) atomicOr(&r.mask[r.id[i]], 1ULL << (i / TOP_K));
    __syncthreads();
    const u64 mask = thread < E ? r.mask[thread] : 0;
    const int count = __popcll(mask), lane = thread & 31, warp = thread >> 5;
    int scan = count | (count != 0) << 16;  // two prefix sums in one: routes, and experts before this one
    const int own = scan;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, scan, d);
        if (lane >= d) scan += other;
    }
    if (lane == 31) r.scan[warp] = scan;
    __syncthreads();
    for (int w = 0; w < warp && w * 32 < E; ++w) scan += r.scan[w];
    if (thread == THREADS - 1) {
        r.distinct = scan >> 16;
        if (!COLUMN_IS_TOKEN) r.offset[scan >> 16] = scan & 0xFFFF;
    }
    if (count) {
        const int d = (scan - own) >> 16, first = (scan - own) & 0xFFFF;
        r.expert[d] = thread;
        if (COLUMN_IS_TOKEN) r.members[d] = (u32)mask;
        else r.offset[d] = first;
        u64 left = mask;
        for (int i = 0; i < count; ++i, left &= left - 1) {
            const int token = __ffsll(left) - 1;
            float weight = 0.f;
#pragma unroll
            for (int k = 0; k < TOP_K; ++k)
                if (r.id[token * TOP_K + k] == thread) weight += r.raw_weight[token * TOP_K + k];
            if (COLUMN_IS_TOKEN) r.dense[d][token] = weight;
            else r.token[first + i] = token, r.weight[first + i] = weight;
        }
    }
    __syncthreads();
}
