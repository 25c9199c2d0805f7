// Sigmoid + bias top-k of the router and e4m3 quantisation of the activations, in one launch.
//
// The grid is split by role: with `spread` 0 the first `route_blocks` blocks route one token a warp and the others
// quantise; with `spread` s one block in 2^s routes until all have. Neither role waits for the other. Routing takes longest
// and comes first while the grid fits the chip; a larger grid would otherwise begin without touching memory (measured,
// tuning.py).
//
//   route: a lane holds PER_LANE neighbouring experts, sorted once by falling key; then TOP_K rounds of one
//          `redux.sync` over the lanes' heads. Rows without equal keys among the chosen (nearly all) take a faster sort
//          and no vote in the round; others are done again with a stable sort, so that the lowest expert wins.
//   quant: LANES lanes share a group of GROUP values, 16 values a lane as two runs of 8 (16-byte loads, 8-byte stores).
//
// Defines: EXPERTS, TOP_K, PER_LANE, HIDDEN, PADDED, GROUP, WARPS (of a block), UNROLL, X_TYPE / LOGITS_TYPE / BIAS_TYPE (0 float32,
// 1 bfloat16, 2 float16, bias also -1 = none), RENORMALIZE, UE8M0, VECTOR (x and q allow 16- and 8-byte access),
// LOGITS_VECTOR (a lane's logits and bias allow 16-byte access; float32 only).

#include "ptx.cuh"

#ifndef WARPS
#define WARPS 4
#endif
constexpr int TAKEN = (int)0x80000000;     // below every key: already selected, or no such expert
constexpr int UNUSABLE = TAKEN + 1;        // a NaN logit: selected only when nothing else is left
constexpr int NEVER = 0x7fffffff;          // no key: the sortable form of a NaN
constexpr int LOWEST = (int)0x807fffff;    // the key of -inf
constexpr int LANES = GROUP / 16;          // lanes that share one group
constexpr int GROUPS = (PADDED + GROUP - 1) / GROUP;

template <int TYPE> __device__ __forceinline__ float widen(const void* base, long long index) {
    if constexpr (TYPE == 0) {
        return ((const float*)base)[index];
    } else if constexpr (TYPE == 1) {
        return float_of_bf16(((const u16*)base)[index]);
    } else {
        return float_of_half(((const u16*)base)[index]);
    }
}

// Signed integers that sort as the floats do.
__device__ __forceinline__ int sortable(float value) {
    int bits = __float_as_int(value);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

// 1 / d, correctly rounded where d and 1 / d are normal (with all ones in the mantissa of d: if the approximation is): the
// approximation and one Newton step, without the branches that __frcp_rn has for the rest. A score 1 / (1 + e^-x) then has the bits of torch.sigmoid, whose ids must be met exactly.
__device__ __forceinline__ float reciprocal(float d) {
    const float r = reciprocal_about(d);
    return fmaf(fmaf(-d, r, 1.0f), r, r);
}

__device__ __forceinline__ void order(int (&key)[PER_LANE], int (&index)[PER_LANE], int a, int b) {
    bool swap = key[b] > key[a];
    int high = max(key[a], key[b]), low = min(key[a], key[b]);
    int first = swap ? index[b] : index[a], second = swap ? index[a] : index[b];
    key[a] = high, key[b] = low, index[a] = first, index[b] = second;
}

// Batcher's merge exchange as a list of pairs: fewer steps, equal keys in any order.
struct Network {
    int count = 0;
    int a[64] = {}, b[64] = {};
};

__device__ constexpr Network merge_exchange() {
    Network net;
    for (int p = 1; p < PER_LANE; p *= 2)
        for (int k = p; k >= 1; k /= 2)
            for (int j = k % p; j + k < PER_LANE; j += 2 * k)
                for (int i = 0; i < k; ++i)
                    if (i + j + k < PER_LANE && (i + j) / (2 * p) == (i + j + k) / (2 * p))
                        net.a[net.count] = i + j, net.b[net.count] = i + j + k, net.count += 1;
    return net;
}

__device__ __forceinline__ void sort_fast(int (&key)[PER_LANE], int (&index)[PER_LANE]) {
    constexpr Network net = merge_exchange();
    #pragma unroll
    for (int i = 0; i < net.count; ++i) order(key, index, net.a[i], net.b[i]);
}

// TOP_K rounds over the lanes' heads; the winner of a round writes its expert to chosen[slot]. Returns whether equal keys
// met among the chosen: then the result does not count.
__device__ __forceinline__ bool select(int (&key)[PER_LANE], int (&index)[PER_LANE], u16* chosen) {
    bool tie = false;
    int last = NEVER;
    #pragma unroll
    for (int slot = 0; slot < TOP_K; ++slot) {
        const int best = __reduce_max_sync(ALL, key[0]);
        const bool mine = key[0] == best;
        const u32 equal = __ballot_sync(ALL, mine);
        tie = tie || (equal & (equal - 1)) != 0 || best == last;
        last = best;
        if (mine) store_any(chosen + slot, (u16)index[0]);
        #pragma unroll
        for (int i = 0; i + 1 < PER_LANE; ++i) {
            key[i] = mine ? key[i + 1] : key[i];
            index[i] = mine ? index[i + 1] : index[i];
        }
        key[PER_LANE - 1] = mine ? TAKEN : key[PER_LANE - 1];
    }
    return tie;
}

// The same from unsorted keys, one after the other: among equal keys the lowest expert wins.
__device__ __forceinline__ void select_with_ties(int (&key)[PER_LANE], int lane, u16* chosen) {
    #pragma unroll 1
    for (int slot = 0; slot < TOP_K; ++slot) {
        int own = key[0], at = 0;
        #pragma unroll
        for (int i = 1; i < PER_LANE; ++i) {
            at = key[i] > own ? i : at;
            own = max(own, key[i]);
        }
        const int best = __reduce_max_sync(ALL, own);
        const u32 winner = __reduce_min_sync(ALL, own == best ? (u32)(lane * PER_LANE + at) : ALL);
        #pragma unroll
        for (int i = 0; i < PER_LANE; ++i) key[i] = lane * PER_LANE + i == (int)winner ? TAKEN : key[i];
        if (lane == 0) chosen[slot] = (u16)winner;
    }
}

__device__ void route(const void* logits, long long logits_stride, const void* bias, float* weights, int* ids, int token,
                      float scale, int lane, float* scores, u16* chosen) {
    float logit[PER_LANE], score[PER_LANE];
#if BIAS_TYPE >= 0
    float offset[PER_LANE];
#endif
    const long long row = token * logits_stride;
#if LOGITS_VECTOR
    #pragma unroll
    for (int i = 0; i < PER_LANE; i += 4) load_four((const float*)logits + row + lane * PER_LANE + i, logit + i);
#if BIAS_TYPE == 0
    #pragma unroll
    for (int i = 0; i < PER_LANE; i += 4) load_four((const float*)bias + lane * PER_LANE + i, offset + i);
#endif
#else
    #pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        int expert = lane * PER_LANE + i;
        logit[i] = expert < EXPERTS ? widen<LOGITS_TYPE>(logits, row + expert) : 0.0f;
#if BIAS_TYPE >= 0
        offset[i] = expert < EXPERTS ? widen<BIAS_TYPE>(bias, expert) : 0.0f;
#endif
    }
#endif
    float denominator[PER_LANE], largest = 0.0f;
    #pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        denominator[i] = 1.0f + expf(-logit[i]);
        largest = fmaxf(largest, denominator[i]);
        score[i] = reciprocal(denominator[i]);
    }
    if (__builtin_expect(largest > 1e37f, 0)) {   // scores below 1e-37, where the reciprocal needs a scale
        #pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const float d = fminf(denominator[i], 3.4028234e38f), tiny = reciprocal(d * 0x1p-64f) * 0x1p-64f;
            score[i] = denominator[i] > 3.4028234e38f ? 0.0f : d > 1e37f ? tiny : score[i];
        }
    }
    int key[PER_LANE], index[PER_LANE], kept[PER_LANE];
    #pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        bool usable = logit[i] == logit[i];
        score[i] = usable ? score[i] : 0.0f;
        scores[lane * PER_LANE + i] = score[i];
#if BIAS_TYPE >= 0
        float choice = score[i] + offset[i];
#else
        float choice = score[i];
#endif
        key[i] = choice == choice ? sortable(choice) : LOWEST;
        key[i] = usable ? key[i] : UNUSABLE;
        key[i] = lane * PER_LANE + i < EXPERTS ? key[i] : TAKEN;
        index[i] = lane * PER_LANE + i;
        kept[i] = key[i];
    }
    sort_fast(key, index);
    if (__builtin_expect(select(key, index, chosen), 0)) {
        __syncwarp();
        select_with_ties(kept, lane, chosen);
    }
    __syncwarp();
    float total = 0.0f, own = 0.0f;
    int id = 0;
    #pragma unroll
    for (int slot = 0; slot < TOP_K; ++slot) {   // every lane, in the order of choice: one fixed sum
        int expert = chosen[slot];
        float value = scores[expert];
        total += value;
        if (slot == lane) own = value, id = expert;
    }
    if (lane < TOP_K) {
#if RENORMALIZE
        own = __fdiv_rn(own, total + 1e-20f);
#endif
        weights[(long long)token * TOP_K + lane] = own * scale;
        ids[(long long)token * TOP_K + lane] = id;
    }
}

#if __CUDA_ARCH__ >= 890
// x / s, correctly rounded, from r = 1 / s correctly rounded (Markstein): three instructions instead of a division.
// The remainder can only underflow where the quotient is far below e4m3's smallest number. By a power of two the product
// is exact. (The remainder is taken with the other sign so that -0 stays -0.)
__device__ __forceinline__ float divide(float x, float s, float r) {
    float quotient = x * r;
    return UE8M0 ? quotient : fmaf(-fmaf(quotient, s, -x), r, quotient);
}

// The scale s of a group, and what `divide` wants: a divisor and r = 1 / s. For an infinite amax s = inf and r = 0, with
// divisor 1, so that finite values become 0 and infinities NaN.
__device__ __forceinline__ void scale_of(float largest, float& s, float& divisor, float& r) {
    constexpr float PER_448 = 1.0f / 448.0f;
    const float amax = fmaxf(largest, 1e-10f), quotient = amax * PER_448;
    s = fmaf(fmaf(-quotient, 448.0f, amax), PER_448, quotient);   // amax / 448, correctly rounded
#if UE8M0
    s = __uint_as_float((__float_as_uint(s) + 0x007fffffu) & 0xff800000u);   // the power of two at or above
#endif
    const bool infinite = amax > 3.4028234e38f;
    divisor = infinite ? 1.0f : s;
    r = infinite ? 0.0f : reciprocal(s);
    s = infinite ? amax : s;
}

#if VECTOR
constexpr int WORDS = X_TYPE == 0 ? 8 : 4;   // registers of 8 values

struct Run { u32 word[WORDS]; };

__device__ __forceinline__ Run load_run(const void* x, long long at, bool valid) {
    Run run;
    const u32* from = (const u32*)x + (X_TYPE == 0 ? at : at / 2);
    #pragma unroll
    for (int i = 0; i < WORDS; i += 4) {
        uint4 part = valid ? *(const uint4*)(from + i) : make_uint4(0, 0, 0, 0);
        run.word[i] = part.x, run.word[i + 1] = part.y, run.word[i + 2] = part.z, run.word[i + 3] = part.w;
    }
    return run;
}

__device__ __forceinline__ void unpack(const Run& run, float* value) {
    #pragma unroll
    for (int i = 0; i < WORDS; ++i) {
        if constexpr (X_TYPE == 0) value[i] = __uint_as_float(run.word[i]);
        else if constexpr (X_TYPE == 1) floats_of_bf16(run.word[i], value[2 * i], value[2 * i + 1]);
        else floats_of_half(run.word[i], value[2 * i], value[2 * i + 1]);
    }
}
#endif

__device__ __forceinline__ void quantise(const float* value, float divisor, float r, u32* code) {
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float* v = value + 4 * i;
        code[i] = e4m3_pair(divide(v[0], divisor, r), divide(v[1], divisor, r)) |
                  (u32)e4m3_pair(divide(v[2], divisor, r), divide(v[3], divisor, r)) << 16;
    }
}

__device__ __forceinline__ float group_max(const float* value) {
    float largest[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) largest[i] = fmaxf(fabsf(value[i]), fabsf(value[i + 8]));   // a tree, not a chain
    #pragma unroll
    for (int half = 4; half > 0; half /= 2)
        #pragma unroll
        for (int i = 0; i < half; ++i) largest[i] = fmaxf(largest[i], largest[i + half]);
    #pragma unroll
    for (int step = LANES / 2; step > 0; step >>= 1)
        largest[0] = fmaxf(largest[0], __shfl_xor_sync(ALL, largest[0], step));
    return largest[0];
}

__device__ void quantise_groups(const void* x, long long x_stride, u8* q, long long q_stride, float* scales,
                                long long scale_row, long long scale_group, u32 total, u32 first, int lane) {
    constexpr u32 STEP = WARPS * (32 / LANES);
    const u32 own = first + lane / LANES;
    const int part = lane % LANES;
#if VECTOR
    Run run[UNROLL][2];
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        u32 group = own + u * STEP, row = group / GROUPS;
        int column = (int)(group % GROUPS) * GROUP + part * 8;
        bool inside = group < total;
        run[u][0] = load_run(x, row * x_stride + column, inside && column < HIDDEN);
        run[u][1] = load_run(x, row * x_stride + column + GROUP / 2, inside && column + GROUP / 2 < HIDDEN);
    }
#endif
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        u32 group = own + u * STEP, row = group / GROUPS;
        int start = (int)(group % GROUPS) * GROUP;
        float value[16], s, divisor, r;
        u32 code[4];
#if VECTOR
        unpack(run[u][0], value);
        unpack(run[u][1], value + 8);
#else
        #pragma unroll
        for (int i = 0; i < 16; ++i) {
            int column = start + part * 8 + (i & 7) + (i >> 3) * (GROUP / 2);
            value[i] = group < total && column < HIDDEN ? widen<X_TYPE>(x, row * x_stride + column) : 0.0f;
        }
#endif
        scale_of(group_max(value), s, divisor, r);
        quantise(value, divisor, r, code);
        if (group >= total) continue;
        u8* to = q + row * q_stride + start + part * 8;
#if VECTOR
        if (start + part * 8 < PADDED) *(uint2*)to = make_uint2(code[0], code[1]);
        if (start + part * 8 + GROUP / 2 < PADDED) *(uint2*)(to + GROUP / 2) = make_uint2(code[2], code[3]);
#else
        #pragma unroll
        for (int i = 0; i < 16; ++i) {
            int offset = (i & 7) + (i >> 3) * (GROUP / 2);
            if (start + part * 8 + offset < PADDED) to[offset] = (u8)(code[i / 4] >> (8 * (i % 4)));
        }
#endif
        if (part == 0) scales[row * scale_row + (long long)(start / GROUP) * scale_group] = s;
    }
}

#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32)
route_quant(const void* x, const void* logits, const void* bias, float* weights, int* ids, u8* q, float* scales,
            int tokens, int route_blocks, int spread, long long x_stride, long long logits_stride, long long q_stride,
            long long scale_row, long long scale_group, float scale) {
    __shared__ __align__(16) float scores[WARPS][32 * PER_LANE];
    __shared__ u16 chosen[WARPS][TOP_K];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // Under a programmatic launch: nothing is read or written before the grid before this one has finished.
    wait_for_predecessor();
    let_successor_start();
    const int turn = blockIdx.x >> spread;
    if (turn < route_blocks && turn << spread == (int)blockIdx.x) {
        int token = turn * WARPS + warp;
        if (token < tokens)
            route(logits, logits_stride, bias, weights, ids, token, scale, lane, scores[warp], chosen[warp]);
        return;
    }
#if __CUDA_ARCH__ >= 890   // below there is no conversion to e4m3: such a device gets the routing blocks only
    const u32 block = blockIdx.x - min(turn + 1, route_blocks);
    u32 first = (block * (UNROLL * WARPS) + warp) * (32 / LANES);
    quantise_groups(x, x_stride, q, q_stride, scales, scale_row, scale_group, (u32)tokens * GROUPS, first, lane);
#endif
}
