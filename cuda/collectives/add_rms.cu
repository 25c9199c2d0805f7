// One-shot all-reduce, residual add and RMS norm in one launch: a block a token.
//
//   push the row to every peer -> add up in rank order -> + residual -> mean of squares -> scale, weight -> store
//
// The norm reads the sum before it is rounded. Defines: WORLD, RANK, DTYPE,
// WEIGHT_TYPE, HIDDEN, PER_THREAD (vectors a thread).
//   slot: [sender][token][vector]

#include "lamport.cuh"

constexpr int VECTORS = HIDDEN / WIDTH;

__device__ __forceinline__ void load_weights(const void* weight, int column, float* to) {
    constexpr int STEP = WEIGHT_TYPE == 0 ? 4 : 8;
    if constexpr (WIDTH % STEP == 0) {
        #pragma unroll
        for (int i = 0; i < WIDTH; i += STEP)
            widen<WEIGHT_TYPE>(*(const uint4*)((const char*)weight + (column + i) * (16 / STEP)), to + i);
    } else {   // four float32 values, weights of 16 bits: half a vector
        float whole[8];
        uint2 half = *(const uint2*)((const char*)weight + column * 2);
        widen<WEIGHT_TYPE>(make_uint4(half.x, half.y, 0, 0), whole);
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i) to[i] = whole[i];
    }
}

extern "C" __global__ void add_rms(const __grid_constant__ Peers peers, const char* x, const char* residual, const void* weight, char* normed,
                                   char* residual_out, u64 slot_bytes, float eps,
                                   const __grid_constant__ Watch watch) {
    __shared__ float room[32];
    wait_for_previous_grid();
    char* arena = peers.arena[RANK];
    const u64 row = (u64)blockIdx.x * VECTORS, stride = (u64)gridDim.x * VECTORS * 16;
    uint4 own[PER_THREAD], before[PER_THREAD];
    #pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        int index = threadIdx.x + i * blockDim.x;
        if (index < VECTORS) own[i] = *(const uint4*)(x + (row + index) * 16);
    }
    const int slot = slot_of_call(arena);
    const u64 start = HEADER + slot * slot_bytes;
    #pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        int index = threadIdx.x + i * blockDim.x;
        if (index >= VECTORS) continue;
        #pragma unroll
        for (int step = 1; step < WORLD; ++step) {
            const int peer = (RANK + step) % WORLD;
            push(peers.arena[peer] + start + part_of(RANK, peer) * stride + (row + index) * 16, own[i]);
        }
    }
    float gain[PER_THREAD][WIDTH], total[PER_THREAD][WIDTH];
    #pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {   // under way while the link works
        int index = threadIdx.x + i * blockDim.x;
        if (index >= VECTORS) continue;
        before[i] = *(const uint4*)(residual + (row + index) * 16);
        load_weights(weight, index * WIDTH, gain[i]);
    }
    float squares = 0.0f;
    #pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        int index = threadIdx.x + i * blockDim.x;
        if (index >= VECTORS) continue;
        uint4 from[WORLD];
        take_all(arena + start + (row + index) * 16, stride, slot, watch, from, Always());
        from[RANK] = own[i];
        float old[WIDTH];
        sum_in_rank_order(from, total[i]);
        widen<DTYPE>(before[i], old);
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            total[i][j] += old[j];
            squares = fmaf(total[i][j], total[i][j], squares);
        }
        *(uint4*)(residual_out + (row + index) * 16) = narrow(total[i]);
    }
    const float factor = rsqrtf(__fdiv_rn(block_sum(squares, room), (float)HIDDEN) + eps);
    #pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        int index = threadIdx.x + i * blockDim.x;
        if (index >= VECTORS) continue;
        float value[WIDTH];
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) value[j] = total[i][j] * factor * gain[i][j];
        *(uint4*)(normed + (row + index) * 16) = narrow(value);
    }
    done(arena);
}
