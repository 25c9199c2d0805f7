// What may be read and written: shared memory in its bounds and in order, and the ranges that the host named.
#include <stdint.h>
#include <string.h>

#include "state.hpp"

namespace machine {

bool in_shared(const void* pointer) {
    const Block& block = my_block();
    return pointer >= block.shared && pointer < block.shared + block.shared_bytes;
}

u32 offset_in_shared(u32 address, u32 bytes, const char* what) {
    const Block& block = my_block();
    if (address < SHARED_BASE || (size_t)address - SHARED_BASE + bytes > block.shared_bytes)
        fail("%s of %u bytes at shared address %d: the block has %zu", what, bytes, (int)(address - SHARED_BASE), block.shared_bytes);
    if (address % bytes && bytes <= 16) fail("%s of %u bytes at shared address %u: not aligned", what, bytes, address);
    return address - SHARED_BASE;
}

void check_range(const void* pointer, u32 bytes, bool writes, const char* what) {
    const unsigned char* p = (const unsigned char*)pointer;
    for (size_t i = 0; i < m.ranges_count; ++i) {
        const Range& range = m.range[i];
        if (range.stream >= 0 && (u32)range.stream != stream()) continue;
        if (p < range.first || p + bytes > range.first + range.bytes) continue;
        if (writes && !range.writable) fail("%s of %u bytes: %s may not be written", what, bytes, range.name);
        return;
    }
    const Range* nearest = nullptr;
    for (size_t i = 0; i < m.ranges_count; ++i)
        if (p >= m.range[i].first && (!nearest || m.range[i].first > nearest->first)) nearest = &m.range[i];
    fail("%s of %u bytes outside every tensor: %lld bytes behind the start of %s, which has %zu", what, bytes,
         nearest ? (long long)(p - nearest->first) : -1, nearest ? nearest->name : "none", nearest ? nearest->bytes : 0);
}

void look_at_shared(u32 offset, u32 bytes, Use use) {
    Block& block = my_block();
    if (!block.order) return;
    Conflict conflict;
    if (block.order->use(offset, bytes, use, me().warp->number, me().number, me().ahead, me().knows, conflict))
        fail("race in shared memory: %s of byte %u, and %s by warp %d, lane %d before, are not ordered",
             use == Use::read ? "a read" : "a write", conflict.offset, conflict.copy ? "a copy" : conflict.write ? "a write" : "a read",
             conflict.warp, conflict.lane);
}

unsigned char* dynamic_shared() { return my_block().shared; }

void* static_shared(const void* key, size_t bytes) {
    Block& block = my_block();
    auto found = block.statics.find(key);
    if (found == block.statics.end()) {
        block.static_bytes = (block.static_bytes + 15) / 16 * 16;
        if (block.static_bytes + bytes > block.shared_bytes) fail("static shared memory: more than the %u bytes named", block.grid->launch->static_shared);
        found = block.statics.emplace(key, block.static_bytes).first;
        block.static_bytes += bytes;
    }
    return block.shared + found->second;
}

u32 shared_address(const void* pointer) {
    const Block& block = my_block();
    const unsigned char* p = (const unsigned char*)pointer;
    if (p < block.shared || p > block.shared + block.shared_bytes) fail("the address of something that is not in shared memory");
    return SHARED_BASE + (u32)(p - block.shared);
}

void load_shared(u32 address, void* to, u32 bytes) {
    const u32 offset = offset_in_shared(address, bytes, "a load");
    look_at_shared(offset, bytes, Use::read);
    memcpy(to, my_block().shared + offset, bytes);
}
void store_shared(u32 address, const void* from, u32 bytes) {
    const u32 offset = offset_in_shared(address, bytes, "a store");
    look_at_shared(offset, bytes, Use::write);
    memcpy(my_block().shared + offset, from, bytes);
}
void load_global(const void* from, void* to, u32 bytes) {
    if ((uintptr_t)from % bytes) fail("a load of %u bytes at %p: not aligned", bytes, from);
    check_range(from, bytes, false, "a load");
    deliver_overlapping(from, bytes);
    memcpy(to, from, bytes);
}
void load_single(const void* from, void* to, u32 bytes) { load_global(from, to, bytes); }
void store_single(void* to, const void* from, u32 bytes) {
    if ((uintptr_t)to % bytes) fail("a store of %u bytes at %p: not aligned", bytes, to);
    check_range(to, bytes, true, "a store");
    store_later(to, from, bytes);
}
void store_any(void* to, const void* from, u32 bytes) {
    if (!in_shared(to)) return store_single(to, from, bytes);
    const u32 offset = (u32)((unsigned char*)to - my_block().shared);
    look_at_shared(offset, bytes, Use::atomic);
    memcpy(my_block().shared + offset, from, bytes);
}
void load_words(const void* from, void* to, u32 bytes) {
    if (m.random.one_in(2)) pause();
    load_global(from, to, bytes);
}
void store_words(void* to, const void* from, u32 bytes) {
    if ((uintptr_t)to % bytes) fail("a store of %u bytes at %p: not aligned", bytes, to);
    check_range(to, bytes, true, "a store");
    for (u32 i = 0; i < bytes; i += 4) store_later((char*)to + i, (const char*)from + i, 4);
}
void prefetch(const void* pointer) { check_range(pointer, 1, false, "a prefetch"); }

void atomic(void* pointer, const void* by, void* before, u32 bytes, Atomic what) {
    if ((uintptr_t)pointer % bytes) fail("an atomic of %u bytes at %p: not aligned", bytes, pointer);
    if (in_shared(pointer)) look_at_shared((u32)((unsigned char*)pointer - my_block().shared), bytes, Use::atomic);
    else {
        check_range(pointer, bytes, true, "an atomic");
        settle(), deliver_overlapping(pointer, bytes);
    }
    u64 old = 0, operand = 0;
    memcpy(&old, pointer, bytes), memcpy(&operand, by, bytes);
    const u64 now = what == Atomic::add ? old + operand : old | operand;
    memcpy(before, &old, bytes), memcpy(pointer, &now, bytes);
    something_happened();
}

// A plain load or store of a kernel.
void plain(const void* pointer, u32 bytes, bool writes) {
    if (!m.running) return;
    const unsigned char* p = (const unsigned char*)pointer;
    if (p >= m.stacks && p < m.stacks + m.stacks_bytes) {
        const unsigned char* stack = me().stack;
        if (p < stack || p >= stack + STACK) fail("local memory of another lane");
        return;
    }
    if (in_shared(p)) {
        if (p + bytes > my_block().shared + my_block().shared_bytes) fail("an access past shared memory");
        return look_at_shared((u32)(p - my_block().shared), bytes, writes ? Use::write : Use::read);
    }
    const Launch& launch = *my_block().grid->launch;
    const unsigned char* slots = (const unsigned char*)launch.slots;
    if (!writes && p >= launch.constants && p < launch.constants_end) return;
    if (!writes && p >= slots && p < slots + MOST_SLOTS * 8) return;
    check_range(p, bytes, writes, writes ? "a store" : "a load");
    if (writes) remember((void*)pointer, bytes);
    else deliver_overlapping(pointer, bytes);
}

}  // namespace machine

// The compiler calls these (-fsanitize=thread, without its run-time library) for every plain access.
#define HOOKS(N)                                                                                \
    extern "C" void __tsan_read##N(void* p) { machine::plain(p, N, false); }                    \
    extern "C" void __tsan_write##N(void* p) { machine::plain(p, N, true); }                    \
    extern "C" void __tsan_unaligned_read##N(void* p) { machine::plain(p, N, false); }          \
    extern "C" void __tsan_unaligned_write##N(void* p) { machine::plain(p, N, true); }          \
    extern "C" void __tsan_volatile_read##N(void* p) { machine::plain(p, N, false); }           \
    extern "C" void __tsan_volatile_write##N(void* p) { machine::plain(p, N, true); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

extern "C" void __tsan_read_range(void* p, unsigned long bytes) { machine::plain(p, (machine::u32)bytes, false); }
extern "C" void __tsan_write_range(void* p, unsigned long bytes) { machine::plain(p, (machine::u32)bytes, true); }
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
