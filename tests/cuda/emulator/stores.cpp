// Stores to global memory: the block that made one sees it at once, others at a random later time, in any order.
//
// The latest times are a fence of the block, an atomic of its own at that place, and the end of its launch. What the memory
// model allows beyond that (loads that are made early, stores that reach some blocks before others) is not emulated.
#include <string.h>

#include "state.hpp"

namespace machine {
namespace {

constexpr size_t MOST = 64;  // of a block; more of them push the oldest out

bool overlap(const Store& store, const void* pointer, size_t bytes) {
    const unsigned char* p = (const unsigned char*)pointer;
    return p < store.to + store.bytes && store.to < p + bytes;
}

void forget(Block& block) {
    for (Block*& other : m.storing)
        if (other == &block) {
            other = m.storing.back(), m.storing.pop_back();
            return;
        }
}

void deliver(Block& block, size_t which) {
    const Store& store = block.stores[which];
    memcpy(store.to, store.what, store.bytes);
    block.stores.erase(block.stores.begin() + which);
    if (block.stores.empty()) forget(block);
    something_happened();
}

void keep(const Store& store) {
    Block& block = my_block();
    if (block.stores.empty()) m.storing.push_back(&block);
    else if (block.stores.size() == MOST) deliver(block, 0);
    block.stores.push_back(store);
}

}  // namespace

void store_later(void* to, const void* from, u32 bytes) {
    settle();
    Store store{(unsigned char*)to, bytes, {}};
    memcpy(store.what, from, bytes);
    keep(store);
}

void remember(void* to, u32 bytes) {
    deliver_overlapping(to, bytes);
    for (unsigned char* p = (unsigned char*)to; bytes; ) {
        Store store{p, bytes < 16 ? bytes : 16, {}};
        memcpy(store.what, p, store.bytes);
        m.fresh.push_back(store);
        p += store.bytes, bytes -= store.bytes;
    }
}

void settle() {
    if (m.fresh.empty()) return;
    std::vector<Store> made = std::move(m.fresh);
    m.fresh.clear();
    std::vector<Store> before = made;
    for (Store& store : made) memcpy(store.what, store.to, store.bytes);
    for (size_t i = before.size(); i--; ) memcpy(before[i].to, before[i].what, before[i].bytes);
    for (const Store& store : made) keep(store);
}

void deliver_store() {
    Block& block = *m.storing[m.random.below((u32)m.storing.size())];
    size_t which = m.random.below((u32)block.stores.size());
    for (size_t i = 0; i < which; ++i)  // those to one place in order
        if (overlap(block.stores[i], block.stores[which].to, block.stores[which].bytes)) which = i;
    deliver(block, which);
}

void deliver_overlapping(const void* pointer, u32 bytes) {
    Block& block = my_block();
    for (size_t i = 0; i < block.stores.size(); )
        if (overlap(block.stores[i], pointer, bytes)) deliver(block, i);
        else ++i;
}

void deliver_all(Block& block) {
    while (!block.stores.empty()) deliver(block, 0);
}

void fence() {
    settle();
    deliver_all(my_block());
}

}  // namespace machine
