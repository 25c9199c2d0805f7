// Between two all-reduces of a long replay: check the last sum, write the next input. One block; DTYPE bfloat16.
// Values are whole numbers in -8..8 that differ by place, rank and step, so that every sum is exact.
// Defines: WORLD, RANK.

#include "ptx.cuh"

__device__ __forceinline__ float value(u32 place, u32 rank, u32 step) {
    u32 mixed = place * 2654435761u ^ (rank * 40503u + step * 2246822519u);
    mixed ^= mixed >> 15;
    return (float)((int)(mixed % 17u) - 8);
}

extern "C" __global__ void turn(u16* x, const u16* sum, u32* step, u64* wrong, u32 count) {
    const u32 now = *step;
    u32 bad = 0;
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        if (now > 0) {
            float wanted = 0.0f;
            for (u32 rank = 0; rank < WORLD; ++rank) wanted += value(i, rank, now);
            bad += __uint_as_float((u32)sum[i] << 16) != wanted;
        }
        x[i] = (u16)(__float_as_uint(value(i, RANK, now + 1)) >> 16);   // exact: small whole numbers
    }
    if (bad) atomicAdd(wrong, (u64)bad);
    __syncthreads();
    if (threadIdx.x == 0) *step = now + 1;
}
