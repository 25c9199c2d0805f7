// The exchange that every kernel of this folder is built on: push into the peers' memory, poll one's own.
//
// A rank's arena, mapped by all peers:   [ ticket u64 | pad to 256 | slot 0 | slot 1 | slot 2 ]
//
// Call number n of a group uses slot n % 3 on every rank. All of a slot's words are EMPTY (all ones) before the call. A
// rank stores its words straight into the peers' slots and polls its own: a word that is not EMPTY has arrived, so the
// data are the flag and no barrier, fence or ordering between words is needed. Whoever has read a word sets it back to
// EMPTY. A payload word of all ones (a NaN) travels as another NaN.
//
// Why nobody overwrites what is unread: a peer pushes for call n + 3 after it has finished call n + 2, for which it
// needed this rank's words of that call, which this rank sent after its call n + 1, hence n, had ended, clearing
// included. (Two slots would do; the third keeps one whole call between clearing and reuse.)
//
// The call number lives on the device, so a captured graph replays: each launch adds TICKETS to `ticket`, spread over
// its blocks. A block reads it before it adds its own share, so ticket / TICKETS is the call number whenever it reads.

#include "ptx.cuh"

constexpr u32 EMPTY = 0xffffffffu;
constexpr u32 NOT_EMPTY = 0x7fffffffu;   // what an all-ones payload is sent as: still a NaN (in both halves, if 16-bit)
constexpr int SLOTS = 3;
constexpr u64 TICKETS = 1ull << 20;
constexpr int HEADER = 256;

// A slot has a part for each sender but the rank itself.
constexpr int PARTS = WORLD - 1;
__device__ __forceinline__ constexpr int part_of(int sender, int receiver) {
    return sender > receiver ? sender - 1 : sender;
}

struct Peers { char* arena[8]; };   // a kernel parameter: in constant memory, indexed by constants

// RANK is a define: addresses and the place of a rank's own part are then constants. A process compiles for its rank.

// Where a rank that waits in vain leaves its name, in host memory: {1, rank, peer, slot, byte offset, ns waited}.
struct Watch {
    u64* record;
    u64 limit_ns;
};

__device__ __forceinline__ void wait_for_previous_grid() {
    wait_for_predecessor();
    let_successor_start();
}

// Slot of this launch; every thread may ask, before `done`.
__device__ __forceinline__ int slot_of_call(const char* arena) {
    const u64 call = load_volatile_u64(arena) / TICKETS;
    return (int)(((u32)(call >> 32) % 3 + (u32)call % 3) % 3);   // 2^32 is 1 modulo 3
}

// Every thread of a block, at its end.
__device__ __forceinline__ void done(char* arena) {
    __syncthreads();
    if (threadIdx.x == 0) {
        u64 share = blockIdx.x == 0 ? TICKETS - (gridDim.x - 1) : 1;
        add_relaxed(arena, share);
    }
}

__device__ __forceinline__ u32 payload(u32 word) { return word == EMPTY ? NOT_EMPTY : word; }

__device__ __forceinline__ void push(char* at, uint4 v) {
    store_volatile(at, make_uint4(payload(v.x), payload(v.y), payload(v.z), payload(v.w)));
}

__device__ __forceinline__ void push(char* at, uint2 v) { store_volatile(at, make_uint2(payload(v.x), payload(v.y))); }

__device__ __forceinline__ bool arrived(uint4 v) {
    return v.x != EMPTY && v.y != EMPTY && v.z != EMPTY && v.w != EMPTY;
}

__device__ __forceinline__ bool arrived(uint2 v) { return v.x != EMPTY && v.y != EMPTY; }

__device__ __forceinline__ void clear(char* at, uint4) { *(uint4*)at = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY); }
__device__ __forceinline__ void clear(char* at, uint2) { *(uint2*)at = make_uint2(EMPTY, EMPTY); }

// Bounds a wait: after the limit it leaves a record and stops the kernel, which the host sees as an error.
__device__ __noinline__ void give_up(u64* where, u64 peer, u64 slot, u64 offset, u64 waited) {
    volatile u64* record = where;
    record[1] = RANK, record[2] = peer, record[3] = slot, record[4] = offset, record[5] = waited;
    __threadfence_system();
    record[0] = 1;
    __threadfence_system();
    trap();
}

struct Patience {
    u32 polls = 0;
    u64 start = 0;

    __device__ __forceinline__ void tick(const Watch& watch, int peer, int slot, u64 offset) {
        if ((++polls & 1023) != 0) return;
        const u64 now = nanoseconds();
        if (start == 0) start = now;
        else if (now - start > watch.limit_ns) give_up(watch.record, peer, slot, offset, now - start);
    }
};

// ---- vectors of 16 bytes: 8 values of 16 bits or 4 of 32 (DTYPE 0 float32, 1 bfloat16, 2 float16)

#ifndef DTYPE
#define DTYPE 1
#endif
constexpr int WIDTH = DTYPE == 0 ? 4 : 8;   // values in a vector
constexpr int BYTES = 16 / WIDTH;           // of a value

template <int TYPE> __device__ __forceinline__ void widen(uint4 v, float* to) {
    const u32 word[4] = {v.x, v.y, v.z, v.w};
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (TYPE == 0) {
            to[i] = __uint_as_float(word[i]);
        } else if constexpr (TYPE == 1) {
            floats_of_bf16(word[i], to[2 * i], to[2 * i + 1]);
        } else {
            floats_of_half(word[i], to[2 * i], to[2 * i + 1]);
        }
    }
}

__device__ __forceinline__ uint4 narrow(const float* from) {
    u32 word[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (DTYPE == 0) word[i] = __float_as_uint(from[i]);
        else if constexpr (DTYPE == 1) word[i] = bf16_pair(from[2 * i], from[2 * i + 1]);
        else word[i] = half_pair(from[2 * i], from[2 * i + 1]);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// `count` values at `from` (all WIDTH of them as one access where `whole`), zeros behind them.
__device__ __forceinline__ uint4 load_values(const void* from, int count, bool whole) {
    if (whole) return *(const uint4*)from;
    u32 word[4] = {0, 0, 0, 0};
    #pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        if (i >= count) continue;
        if constexpr (DTYPE == 0) word[i] = ((const u32*)from)[i];
        else word[i / 2] |= (u32)((const u16*)from)[i] << (16 * (i & 1));
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

__device__ __forceinline__ void store_values(void* to, uint4 v, int count, bool whole) {
    if (whole) {
        *(uint4*)to = v;
        return;
    }
    const u32 word[4] = {v.x, v.y, v.z, v.w};
    #pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        if (i >= count) continue;
        if constexpr (DTYPE == 0) ((u32*)to)[i] = word[i];
        else ((u16*)to)[i] = (u16)(word[i / 2] >> (16 * (i & 1)));
    }
}

// Adds the vectors of all ranks in rank order, in float32: the same bits on every rank.
__device__ __forceinline__ void sum_in_rank_order(const uint4 (&from)[WORLD], float* total) {
    widen<DTYPE>(from[0], total);
    #pragma unroll
    for (int peer = 1; peer < WORLD; ++peer) {
        float value[WIDTH];
        widen<DTYPE>(from[peer], value);
        #pragma unroll
        for (int i = 0; i < WIDTH; ++i) total[i] += value[i];
    }
}

template <typename Vector> __device__ __forceinline__ Vector look(const char* at) {
    if constexpr (sizeof(Vector) == 16) return load_volatile(at);
    else return load_volatile_pair(at);
}

// Waits for a vector of every other rank that is `wanted(peer)`: it arrives in the peer's part at base, and is cleared.
// Parts are `stride` bytes apart. All are looked at before any is waited for.
template <typename Vector, typename Wanted>
__device__ __forceinline__ void take_all(char* base, u64 stride, int slot, const Watch& watch, Vector (&from)[WORLD],
                                         Wanted wanted) {
    Patience patience;
    int missing;
    do {
        missing = -1;
        #pragma unroll
        for (int peer = 0; peer < WORLD; ++peer)
            if (peer != RANK && wanted(peer)) from[peer] = look<Vector>(base + part_of(peer, RANK) * stride);
        #pragma unroll
        for (int peer = 0; peer < WORLD; ++peer)
            if (peer != RANK && wanted(peer) && !arrived(from[peer])) missing = peer;
        if (missing >= 0) patience.tick(watch, missing, slot, part_of(missing, RANK) * stride);
    } while (missing >= 0);
    #pragma unroll
    for (int peer = 0; peer < WORLD; ++peer)
        if (peer != RANK && wanted(peer)) clear(base + part_of(peer, RANK) * stride, from[peer]);
}

struct Always {
    __device__ __forceinline__ bool operator()(int) const { return true; }
};

// The sum of `value` over the block, in a fixed order, for every thread. `room` holds a float for each warp.
__device__ __forceinline__ float block_sum(float value, float* room) {
    #pragma unroll
    for (int step = 16; step > 0; step >>= 1) value += __shfl_xor_sync(ALL, value, step);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0.0f;
    for (u32 warp = 0; warp < blockDim.x / 32; ++warp) total += room[warp];
    return total;
}
