// RMS norm of Q and K over their whole width on all ranks, in one launch: a block a token.
//
//   sum of squares of this rank's Q and K -> 8 bytes to every peer -> sums in rank order -> scale -> store
//
// The row stays in registers from the load to the store, so the output may be the input. Every rank adds the same
// numbers in the same order. Defines: WORLD, RANK, DTYPE, WEIGHT_TYPE, Q_SIZE, K_SIZE, PER_THREAD (vectors a thread).
//   slot: [sender][token] of {sum of q^2, sum of k^2} float32

#include "lamport.cuh"

constexpr int Q_VECTORS = (Q_SIZE + WIDTH - 1) / WIDTH;
constexpr int K_VECTORS = (K_SIZE + WIDTH - 1) / WIDTH;
constexpr int VECTORS = Q_VECTORS + K_VECTORS;

struct Place {   // vector `index` of a row: in Q or in K, its first column there, its values
    bool in_q;
    int column, count;

    __device__ __forceinline__ explicit Place(int index) {
        in_q = index < Q_VECTORS;
        column = (in_q ? index : index - Q_VECTORS) * WIDTH;
        count = min(WIDTH, (in_q ? Q_SIZE : K_SIZE) - column);
    }
};

__device__ __forceinline__ float weight_of(const void* weight, int column) {
    if constexpr (WEIGHT_TYPE == 0) return ((const float*)weight)[column];
    else if constexpr (WEIGHT_TYPE == 1) return float_of_bf16(((const u16*)weight)[column]);
    else return float_of_half(((const u16*)weight)[column]);
}

__device__ __forceinline__ void load_weights(const void* weight, Place place, bool aligned, float* to) {
    constexpr int STEP = WEIGHT_TYPE == 0 ? 4 : 8;
    if (aligned && place.count == WIDTH && WIDTH % STEP == 0) {
        #pragma unroll
        for (int i = 0; i < WIDTH; i += STEP)
            widen<WEIGHT_TYPE>(*(const uint4*)((const char*)weight + (place.column + i) * (16 / STEP)), to + i);
        return;
    }
    #pragma unroll
    for (int i = 0; i < WIDTH; ++i) to[i] = i < place.count ? weight_of(weight, place.column + i) : 0.0f;
}

extern "C" __global__ void qk_rms(const __grid_constant__ Peers peers, const char* qkv, const void* q_weight, const void* k_weight, char* q_out,
                                  char* k_out, u64 qkv_stride, u64 q_stride, u64 k_stride, u64 slot_bytes,
                                  int aligned, float eps, const __grid_constant__ Watch watch) {
    __shared__ float room[2][32];
    __shared__ float scale[2];
    wait_for_previous_grid();
    char* arena = peers.arena[RANK];
    const int slot = slot_of_call(arena);
    const char* row = qkv + blockIdx.x * qkv_stride * BYTES;
    uint4 raw[PER_THREAD];
    #pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        int index = threadIdx.x + i * blockDim.x;
        Place place(index);
        if (index < VECTORS)
            raw[i] = load_values(row + (place.column + (place.in_q ? 0 : Q_SIZE)) * BYTES, place.count,
                                 aligned && place.count == WIDTH);
    }
    float weight[PER_THREAD][WIDTH];
    #pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        int index = threadIdx.x + i * blockDim.x;
        Place place(index);
        if (index < VECTORS) load_weights(place.in_q ? q_weight : k_weight, place, aligned, weight[i]);
    }
    float q = 0.0f, k = 0.0f;
    #pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        int index = threadIdx.x + i * blockDim.x;
        if (index >= VECTORS) continue;
        float value[WIDTH], sum = 0.0f;
        widen<DTYPE>(raw[i], value);
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) sum = fmaf(value[j], value[j], sum);
        if (index < Q_VECTORS) q += sum;
        else k += sum;
    }
    #pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        q += __shfl_xor_sync(ALL, q, step);
        k += __shfl_xor_sync(ALL, k, step);
    }
    if (threadIdx.x % 32 == 0) room[0][threadIdx.x / 32] = q, room[1][threadIdx.x / 32] = k;
    __syncthreads();
    if (threadIdx.x < 32) {   // lane = peer: adds up the block, sends to that peer, waits for it
        const int lane = threadIdx.x, warps = blockDim.x / 32;
        float sum_q = 0.0f, sum_k = 0.0f;
        for (int warp = 0; warp < warps; ++warp) sum_q += room[0][warp], sum_k += room[1][warp];
        const u64 start = HEADER + slot * slot_bytes, offset = blockIdx.x * 8;
        if (lane < WORLD && lane != RANK)
            push(peers.arena[lane] + start + (u64)part_of(RANK, lane) * gridDim.x * 8 + offset,
                 make_uint2(__float_as_uint(sum_q), __float_as_uint(sum_k)));
        if (lane < WORLD && lane != RANK) {
            const u64 there = (u64)part_of(lane, RANK) * gridDim.x * 8 + offset;
            char* at = arena + start + there;
            Patience patience;
            uint2 got = load_volatile_pair(at);
            while (!arrived(got)) {
                patience.tick(watch, lane, slot, there);
                got = load_volatile_pair(at);
            }
            clear(at, got);
            sum_q = __uint_as_float(got.x), sum_k = __uint_as_float(got.y);
        }
        __syncwarp();
        float all_q = 0.0f, all_k = 0.0f;
        #pragma unroll
        for (int peer = 0; peer < WORLD; ++peer) {
            all_q += __shfl_sync(ALL, sum_q, peer);
            all_k += __shfl_sync(ALL, sum_k, peer);
        }
        if (lane == 0) {
            scale[0] = rsqrtf(__fdiv_rn(all_q, (float)Q_SIZE * WORLD) + eps);
            scale[1] = rsqrtf(__fdiv_rn(all_k, (float)K_SIZE * WORLD) + eps);
        }
    }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        int index = threadIdx.x + i * blockDim.x;
        if (index >= VECTORS) continue;
        Place place(index);
        float value[WIDTH];
        widen<DTYPE>(raw[i], value);
        const float factor = scale[place.in_q ? 0 : 1];
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) value[j] = value[j] * factor * weight[i][j];
        char* to = place.in_q ? q_out + blockIdx.x * q_stride * BYTES : k_out + blockIdx.x * k_stride * BYTES;
        store_values(to + place.column * BYTES, narrow(value), place.count, aligned && place.count == WIDTH);
    }
    done(arena);
}
