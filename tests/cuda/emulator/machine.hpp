// What kernels see of the emulated machine (machine.cpp): lanes that meet, wait and copy. Included by every emulated kernel.
//
// A lane is a fiber, and one runs at a time: which one is drawn at random from a seed, at every point where the hardware may
// switch. A warp's lanes meet in collectives; warps meet in barriers.
#pragma once
#include <cstddef>
#include <cstdint>

namespace machine {

using u32 = uint32_t;
using u64 = uint64_t;

struct Index {
    u32 x, y, z;
};
Index thread_index();
Index block_index();
Index block_size();
Index grid_size();

// ---- warps. `count` words of every lane go in, `results` come out; `combine` works on all 32 lanes at once.
constexpr int MOST_WORDS = 12;
typedef u32 Words[32][MOST_WORDS];
typedef void (*Combine)(const Words& in, Words& out);
void collective(const char* name, const u32* words, int count, Combine combine, u32* out, int results);
void sync_warp();
// m16n8k16 (two values a word) and m16n8k32 (four): 6 words of A and B, 4 of C, as PTX lays them out in the lanes.
void mma_bf16(const Words& in, Words& out);
void mma_half(const Words& in, Words& out);
void mma_u8s8(const Words& in, Words& out);

// ---- a thread block
unsigned char* dynamic_shared();
void* static_shared(const void* key, size_t bytes);  // one for each `key`
u32 shared_address(const void* pointer);
void named_barrier(int id, int threads, bool wait);  // threads 0: the whole block

// ---- barriers in shared memory
void barrier_init(u32 barrier, u32 count);
void barrier_fence();
void barrier_arrive(u32 barrier, u32 expected_bytes);
bool barrier_passed(u32 barrier, u32 parity);
void barrier_wait(u32 barrier, u32 parity);
void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier);

// ---- memory, with checks of bounds, alignment and order
void load_shared(u32 address, void* to, u32 bytes);
void store_shared(u32 address, const void* from, u32 bytes);
void load_global(const void* from, void* to, u32 bytes);            // an ordinary load
void load_single(const void* from, void* to, u32 bytes);            // one value, however wide
void store_single(void* to, const void* from, u32 bytes);
void store_any(void* to, const void* from, u32 bytes);              // several lanes may, at once: one of the values stays
void load_words(const void* from, void* to, u32 bytes);             // each word for itself; others may run first
void store_words(void* to, const void* from, u32 bytes);
void fence();                                                       // others see what this block has stored
void prefetch(const void* pointer);
enum class Atomic { add, bit_or };
void atomic(void* pointer, const void* by, void* before, u32 bytes, Atomic what);  // of integers

// ---- time
void pause();  // nothing to do until somebody else has done something
u64 clock();

// ---- launches that overlap
void wait_for_predecessor();
void let_successor_start();
u32 stream();

u32 multiprocessor();
u32 draw(u32 choices);  // at random, below `choices`
[[noreturn]] void fail(const char* format, ...);

}  // namespace machine
