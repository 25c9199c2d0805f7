// Sorting the routes by expert, inside the kernel: who is needed (`expert`, in the order of the list), and for each the
// tokens that want it and their weights (`offset`, `token`, and `weight` or `members` and `dense`). An id out of range is dropped; an expert that a
// token lists twice is one route with the sum of the weights.
#pragma once

constexpr int ROUTES = MAX_M * TOP_K;
constexpr int MOST_DISTINCT = ROUTES < E ? ROUTES : E;
constexpr bool ONE_WARP = ROUTES <= 32;  // a lane a route: no barrier among warps
constexpr bool COLUMN_IS_TOKEN = MAX_M <= 8 || ONE_WARP;  // phase 2 (slots.cuh) keeps its sums in registers
static_assert(!ONE_WARP || COLUMN_IS_TOKEN, "sort_in_a_warp writes no list of weights");

struct Routes {
    int parity;  // apart from `distinct`: the producer reads that one without waiting for this one
    u64 mask[ONE_WARP ? 1 : E];              // tokens that want an expert
    float raw_weight[ONE_WARP ? 1 : ROUTES];
    int id[ONE_WARP ? 1 : ROUTES];
    float weight[COLUMN_IS_TOKEN ? 1 : ROUTES];
    u32 members[COLUMN_IS_TOKEN ? MOST_DISTINCT : 1];       // tokens that want an expert
    float dense[COLUMN_IS_TOKEN ? MOST_DISTINCT : 1][COLUMN_IS_TOKEN ? MAX_M : 1];  // their weights; of other tokens whatever was there
    int offset[MOST_DISTINCT + 1];
    int scan[THREADS / 32 + 1];
    u16 token[ROUTES];
    u16 expert[MOST_DISTINCT];
    int distinct;
};

DEVICE int route_id(const Arguments& p, int i) {
    const long long id = ID_64 ? ((const long long*)p.ids)[i] : ((const int*)p.ids)[i];
    return id >= 0 && id < E ? (int)id : -1;
}
DEVICE float route_weight(const Arguments& p, int i) {
    if (ROUTE_WEIGHT == 2) return ((const float*)p.weights)[i];
    const u16 v = ((const u16*)p.weights)[i];
    return ROUTE_WEIGHT == 1 ? float_of_half(v) : float_of_bf16(v);
}

// The valid lanes that hold the same id as this one. (A vote for each bit: `match` takes a round for each value.)
DEVICE u32 lanes_with(int id, u32 valid) {
    u32 same = valid;
#pragma unroll
    for (int bit = 1; bit < E; bit *= 2) {
        const u32 set = __ballot_sync(~0u, id & bit);
        same &= id & bit ? set : ~set;
    }
    return same;
}

// One warp sorts alone: order of first mention. With `weights`, writes those and nothing else; without, the lists.
DEVICE void sort_in_a_warp(Routes& r, const Arguments& p, int lane, bool weights) {
    const bool there = lane < p.tokens * TOP_K;
    const int id = there ? route_id(p, lane) : -1;
    const float raw = weights && there ? route_weight(p, lane) : 0.f;
    const bool valid = id >= 0;
    const u32 below = (1u << lane) - 1;
    const u32 same = lanes_with(id, __ballot_sync(~0u, valid));
    const int token = lane / TOP_K;
    const u32 of_token = (TOP_K == 32 ? ~0u : (1u << TOP_K) - 1) << (token * TOP_K);
    const bool counts = valid && (same & of_token & below) == 0;
    const u32 group = same & __ballot_sync(~0u, counts);
    const int leader = __ffs(group) - 1;
    const u32 leaders = __ballot_sync(~0u, counts && leader == lane);
    // Routes of the experts before this one.
    const int size = counts && leader == lane ? __popc(group) : 0;
    int scan = size;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, scan, d);
        if (lane >= d) scan += other;
    }
    const int first = __shfl_sync(~0u, scan - size, leader & 31);
    if (weights) {
        float sum = 0.f;
#pragma unroll
        for (int k = 0; k < TOP_K; ++k) {
            const int from = token * TOP_K + k;
            const float w = __shfl_sync(~0u, raw, from & 31);
            if (same >> (from & 31) & 1) sum += w;
        }
        if (counts) r.dense[__popc(leaders & ((1u << leader) - 1))][token] = sum;
        return;
    }
    if (counts) r.token[first + __popc(group & below)] = token;
    if (counts && leader == lane) {
        const int d = __popc(leaders & below);
        u32 members = 0;
#pragma unroll
        for (int i = 0; i < MAX_M; ++i)
            if (group & (TOP_K == 32 ? ~0u : ((1u << TOP_K) - 1) << (i * TOP_K))) members |= 1u << i;
        r.members[d] = members;
        r.expert[d] = id;
        r.offset[d] = first;
    }
    if (lane == 31) r.distinct = __popc(leaders), r.offset[__popc(leaders)] = scan;
    __syncwarp();
}

// All warps sort together: order of the ids.
DEVICE void sort_in_a_block(Routes& r, const Arguments& p, int thread) {
    const int routes = p.tokens * TOP_K;
    for (int e = thread; e < E; e += THREADS) r.mask[e] = 0;
    wait_for_predecessor();
    for (int i = thread; i < routes; i += THREADS) r.id[i] = route_id(p, i), r.raw_weight[i] = route_weight(p, i);
    __syncthreads();
    for (int i = thread; i < routes; i += THREADS)
        if (r.id[i] >= 0) atomicOr(&r.mask[r.id[i]], 1ULL << (i / TOP_K));
    __syncthreads();
    const u64 mask = thread < E ? r.mask[thread] : 0;
    const int count = __popcll(mask), lane = thread & 31, warp = thread >> 5;
    int scan = count | (count != 0) << 16;
    const int own = scan;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, scan, d);
        if (lane >= d) scan += other;
    }
    if (lane == 31) r.scan[warp] = scan;
    __syncthreads();
    for (int w = 0; w < warp && w * 32 < E; ++w) scan += r.scan[w];
    if (thread == THREADS - 1) r.distinct = scan >> 16, r.offset[scan >> 16] = scan & 0xFFFF;
    if (count) {
        const int d = (scan - own) >> 16, first = (scan - own) & 0xFFFF;
        r.expert[d] = thread;
        r.offset[d] = first;
        if (COLUMN_IS_TOKEN) r.members[d] = (u32)mask;
        u64 left = mask;
        for (int i = 0; i < count; ++i, left &= left - 1) {
            const int token = __ffsll(left) - 1;
            float weight = 0.f;
#pragma unroll
            for (int k = 0; k < TOP_K; ++k)
                if (r.id[token * TOP_K + k] == thread) weight += r.raw_weight[token * TOP_K + k];
            r.token[first + i] = token;
            if (COLUMN_IS_TOKEN) r.dense[d][token] = weight;
            else r.weight[first + i] = weight;
        }
    }
    __syncthreads();
}
