// Barriers in shared memory (mbarrier), and the bulk copies that arrive at them.
#include <string.h>

#include "state.hpp"

namespace machine {

void complete_if_done(Barrier& b) {
    if (b.pending || b.bytes) return;
    b.passed[b.phase & 1] = b.arriving;
    b.passed[b.phase & 1].at[b.place] = b.phase + 1;
    b.arriving = Knowledge{};
    ++b.phase, b.pending = b.count;
    something_happened();
    wake_all(b.waiting);
}

void deliver_one() {
    const u32 i = m.random.below((u32)m.copies.size());
    Copy& c = m.copies[i];
    u32 part = c.bytes;
    if (c.bytes > 16 && m.random.one_in(2)) part = 16 * (1 + m.random.below(c.bytes / 16 - 1));
    memcpy(c.block->shared + (c.to - SHARED_BASE), c.from, part);
    Barrier& b = c.block->barriers[c.barrier];
    b.bytes -= part;
    c.to += part, c.from += part, c.bytes -= part;
    if (c.bytes == 0) {
        --c.block->copies;
        m.copies[i] = m.copies.back(), m.copies.pop_back();
    }
    complete_if_done(b);
    something_happened();
}

namespace {
Barrier& barrier_at(u32 address, const char* what) {
    offset_in_shared(address, 8, what);
    Block& block = my_block();
    auto found = block.barriers.find(address);
    if (found == block.barriers.end() || !found->second.made) fail("%s at a barrier (shared address %u) that is not made yet", what, address);
    return found->second;
}

}  // namespace

void barrier_init(u32 address, u32 count) {
    const u32 offset = offset_in_shared(address, 8, "mbarrier.init");
    Block& block = my_block();
    Barrier& b = block.barriers[address];
    if (b.made) fail("a barrier (shared address %u) is made twice", address);
    if (count == 0) fail("a barrier for nobody");
    b.place = Knowledge::WARPS + (int)block.barriers.size() - 1;
    if (b.place >= Knowledge::SIZE) fail("more than %d barriers", Knowledge::SIZE - Knowledge::WARPS);
    b.made = true, b.maker = m.running, b.count = b.pending = count;
    look_at_shared(offset, 8, Use::write);
}

void barrier_fence() {
    for (auto& [address, b] : my_block().barriers)
        if (b.maker == m.running) b.fenced = true;
}

void barrier_arrive(u32 address, u32 expected) {
    Barrier& b = barrier_at(address, "an arrival");
    look_at_shared(address - SHARED_BASE, 8, Use::atomic);
    if (b.pending == 0) fail("more arrivals than a barrier's %u", b.count);
    b.bytes += expected;
    Knowledge known = me().knows;
    known.lanes[me().warp->number] |= 1u << me().number;
    b.arriving.add(known);
    me().ahead = true;
    --b.pending;
    complete_if_done(b);
}

bool barrier_passed(u32 address, u32 parity) {
    Barrier& b = barrier_at(address, "a wait");
    look_at_shared(address - SHARED_BASE, 8, Use::atomic);
    if ((b.phase & 1) == (parity & 1)) return false;
    if (b.phase) me().knows.add(b.passed[(b.phase - 1) & 1]);
    return true;
}

void barrier_wait(u32 address, u32 parity) {
    if (m.random.one_in(8)) pause();  // others first
    while (!barrier_passed(address, parity)) {
        my_block().barriers[address].waiting.push_back(m.running);
        block_on("mbarrier", address - SHARED_BASE);
    }
}

void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
    if (bytes == 0 || bytes % 16 || to % 16 || (uintptr_t)from % 16)
        fail("a bulk copy of %u bytes from %p to shared address %u: wanted multiples of 16", bytes, from, to);
    Block& block = my_block();
    Barrier& b = barrier_at(barrier, "a bulk copy");
    if (!b.fenced) fail("a bulk copy to a barrier that was made without a fence");
    const u32 offset = offset_in_shared(to, bytes, "a bulk copy");
    check_range(from, bytes, false, "a bulk copy");
    settle(), deliver_overlapping(from, bytes);
    if (block.order) {
        Conflict conflict;
        if (block.order->copy(offset, bytes, b.place, b.phase, me().knows, me().warp->number, me().number, conflict))
            fail("race in shared memory: a copy to byte %u, and %s by warp %d, lane %d before, are not ordered", conflict.offset,
                 conflict.write ? "a write" : "a read", conflict.warp, conflict.lane);
    }
    memset(block.shared + offset, POISON, bytes);
    m.copies.push_back({&block, to, bytes, barrier, (const unsigned char*)from});
    ++block.copies;
    ++m.copies_made, m.copied_bytes += bytes;
}

}  // namespace machine
