// All-reduce over peer memory. Defines: WORLD, RANK, DTYPE, UNROLL (vectors a thread).
//
//   one_shot   every rank sends its whole message to every peer and adds up what it got. (world - 1) * bytes out of a
//              rank, one trip over the link.
//                slot: [sender][vector]
//   two_shot   rank r adds up the r-th share of the message and sends the sums round. 2 * (world - 1) / world * bytes
//              out of a rank, two trips.
//                slot: [sender][vector of my share], then [owner][vector of the owner's share]
//
// A thread pushes all that it will send before it polls, and thread t of a rank waits for thread t of the peers only,
// so blocks need not be resident together: they start in order, and the first unfinished one can always finish.

#include "lamport.cuh"

struct Message {
    const char* x;
    char* out;
    u64 count, vectors;
    int aligned;

    __device__ __forceinline__ int values(u64 v) const { return (int)min((u64)WIDTH, count - v * WIDTH); }
    __device__ __forceinline__ bool whole(u64 v) const { return aligned && (v + 1) * WIDTH <= count; }
    __device__ __forceinline__ uint4 load(u64 v) const { return load_values(x + v * 16, values(v), whole(v)); }
    __device__ __forceinline__ void store(u64 v, uint4 what) const { store_values(out + v * 16, what, values(v), whole(v)); }
};

extern "C" __global__ void one_shot(const __grid_constant__ Peers peers, const char* x, char* out, u64 count,
                                    u64 slot_bytes, int aligned, const __grid_constant__ Watch watch) {
    wait_for_previous_grid();
    const Message message = {x, out, count, (count + WIDTH - 1) / WIDTH, aligned};
    const u64 first = (u64)blockIdx.x * blockDim.x * UNROLL + threadIdx.x, stride = message.vectors * 16;
    char* arena = peers.arena[RANK];
    const int slot = slot_of_call(arena);
    uint4 own[UNROLL];
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        u64 v = first + u * blockDim.x;
        if (v < message.vectors) own[u] = message.load(v);
    }
    const u64 start = HEADER + slot * slot_bytes;
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        u64 v = first + u * blockDim.x;
        if (v >= message.vectors) continue;
        #pragma unroll
        for (int step = 1; step < WORLD; ++step) {
            const int peer = (RANK + step) % WORLD;
            push(peers.arena[peer] + start + part_of(RANK, peer) * stride + v * 16, own[u]);
        }
    }
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        u64 v = first + u * blockDim.x;
        if (v >= message.vectors) continue;
        uint4 from[WORLD];
        take_all(arena + start + v * 16, stride, slot, watch, from, Always());
        from[RANK] = own[u];
        float total[WIDTH];
        sum_in_rank_order(from, total);
        message.store(v, narrow(total));
    }
    done(arena);
}

extern "C" __global__ void two_shot(const __grid_constant__ Peers peers, const char* x, char* out, u64 count,
                                    u64 slot_bytes, int aligned, const __grid_constant__ Watch watch) {
    wait_for_previous_grid();
    const Message message = {x, out, count, (count + WIDTH - 1) / WIDTH, aligned};
    const u64 share = (message.vectors + WORLD - 1) / WORLD, stride = share * 16;
    const u64 first = (u64)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
    char* arena = peers.arena[RANK];
    const int slot = slot_of_call(arena);
    const u64 start = HEADER + slot * slot_bytes, sums = start + PARTS * stride;
    uint4 own[UNROLL];
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        u64 j = first + u * blockDim.x;
        if (j >= share) continue;
        uint4 value[WORLD];
        #pragma unroll
        for (int peer = 0; peer < WORLD; ++peer)
            if (peer * share + j < message.vectors) value[peer] = message.load(peer * share + j);
        own[u] = value[RANK];
        #pragma unroll
        for (int step = 1; step < WORLD; ++step) {
            const int peer = (RANK + step) % WORLD;
            if (peer * share + j < message.vectors)
                push(peers.arena[peer] + start + part_of(RANK, peer) * stride + j * 16, value[peer]);
        }
    }
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        u64 j = first + u * blockDim.x, v = RANK * share + j;
        if (j >= share || v >= message.vectors) continue;
        uint4 from[WORLD];
        take_all(arena + start + j * 16, stride, slot, watch, from, Always());
        from[RANK] = own[u];
        float total[WIDTH];
        sum_in_rank_order(from, total);
        uint4 sum = narrow(total);
        #pragma unroll
        for (int step = 1; step < WORLD; ++step) {
            const int peer = (RANK + step) % WORLD;
            push(peers.arena[peer] + sums + part_of(RANK, peer) * stride + j * 16, sum);
        }
        message.store(v, sum);
    }
    #pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        u64 j = first + u * blockDim.x;
        if (j >= share) continue;
        auto exists = [&](int peer) { return peer * share + j < message.vectors; };
        uint4 sum[WORLD];
        take_all(arena + sums + j * 16, stride, slot, watch, sum, exists);
        #pragma unroll
        for (int peer = 0; peer < WORLD; ++peer)
            if (peer != RANK && exists(peer)) message.store(peer * share + j, sum[peer]);
    }
    done(arena);
}
