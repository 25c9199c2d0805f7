// What the machine is made of, for its own files.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <map>
#include <memory>
#include <vector>

#include "host.hpp"
#include "order.hpp"

namespace machine {

constexpr size_t STACK = 64 << 10;   // bytes of a lane's stack
constexpr u32 SHARED_BASE = 1024;    // the address of a block's first byte of shared memory
constexpr unsigned char POISON = 0xCB;  // in shared memory that nobody has written, or that a copy is about to fill

struct Random {
    u64 state;
    u32 next() {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return (u32)(state >> 16);
    }
    u32 below(u32 n) { return n ? next() % n : 0; }
    bool one_in(u32 n) { return next() % n == 0; }
};

struct Warp;
struct Block;
struct Grid;

struct Lane {
    Warp* warp = nullptr;
    int number = 0;  // in the warp
    Index thread{};
    unsigned char* stack = nullptr;
    jmp_buf at;
    bool started = false, left = false;
    const char* waits = "";
    u32 waits_for = 0;
    Knowledge knows;
    bool ahead = false;  // order.hpp
};

struct Warp {
    Block* block = nullptr;
    int number = 0;
    Lane lanes[32];
    u32 ready = 0, left = 0;
    bool queued = false, slow = false;
    // the collective under way
    const char* meets = nullptr;
    int count = 0, arrived = 0, generation = 0;
    Words in, out[2];
};

struct Barrier {
    bool made = false, fenced = false;
    Lane* maker = nullptr;
    u32 count = 0, pending = 0, phase = 0;
    long long bytes = 0;  // expected, less those that have come
    int place = 0;        // its component of Knowledge
    Knowledge arriving, passed[2];
    std::vector<Lane*> waiting;
};

struct Named {
    int arrived = 0, wanted = 0;
    Knowledge arriving;
    std::vector<Warp*> waiting;
};

struct Copy {
    Block* block;
    u32 to, bytes, barrier;
    const unsigned char* from;
};

struct Store {  // that other blocks do not see yet
    unsigned char* to;
    u32 bytes;
    unsigned char what[16];
};

struct Block {
    Grid* grid = nullptr;
    Index number{};
    std::vector<Warp> warps;
    unsigned char* shared = nullptr;
    size_t shared_bytes = 0;
    std::map<u32, Barrier> barriers;
    Named named[16];
    std::map<const void*, size_t> statics;
    size_t static_bytes = 0;
    std::unique_ptr<Order> order;
    int living = 0, copies = 0;
    bool let_go = false;
    std::vector<Store> stores;  // in order
};

struct Grid {
    const Launch* launch = nullptr;
    Grid *before = nullptr, *after = nullptr;
    std::vector<Block> blocks;
    int living = 0, held = 0;  // blocks that have not ended; that have not let the successor start
    size_t begun = 0;          // blocks
    bool started = false, slow = false;
    std::vector<Lane*> waiting;  // for the grid before
};

struct Machine {
    Random random{1};
    std::vector<std::unique_ptr<Grid>> grids;
    std::vector<Warp*> ready, ready_slow;
    std::vector<Lane*> pausing;
    std::vector<Copy> copies;
    std::vector<Block*> storing;  // those with stores that others do not see yet
    std::vector<Store> fresh;     // plain stores since the last switch: `what` was there before
    const Range* range = nullptr;
    size_t ranges_count = 0;
    Lane* running = nullptr;
    unsigned char* stacks = nullptr;
    size_t stacks_bytes = 0, stacks_used = 0;
    std::vector<unsigned char*> free_stacks;
    unsigned char* leaving = nullptr;  // the stack of a lane that has left
    jmp_buf out;
    ucontext_t context;
    u64 clock = 0;
    int stale = 0, patience = 0;
    u32 stickiness = 16, eagerness = 16;
    int streams = 1;
    bool races = true, failed = false;
    Report* report = nullptr;
    u64 copies_made = 0, copied_bytes = 0;
};
extern Machine m;

inline Lane& me() { return *m.running; }
inline Block& my_block() { return *m.running->warp->block; }

// ---- fibers.cpp
void queue(Warp& warp);                      // it has lanes that can run
void wake(Lane* lane);
void wake_all(std::vector<Lane*>& lanes);
void release(Warp& warp, u32 without);       // all its lanes but `without` go on
void block_on(const char* what, u32 which = 0);  // somebody else runs until this lane is woken
void something_happened();                   // those who look again and again may find it
Lane* next_lane();                           // nullptr: all have left
void run(Lane* lane);

// ---- launches.cpp
void start_grid(Grid& grid);
void lane_left(Lane& lane);

// ---- barriers.cpp
void deliver_one();  // a part of a copy, or its last one
void complete_if_done(Barrier& barrier);

// ---- stores.cpp
void store_later(void* to, const void* from, u32 bytes);  // others see it at some time
void remember(void* to, u32 bytes);                        // a plain store that is about to be made
void settle();                                             // before others run: they see the plain stores later
void deliver_store();                                      // one of any block
void deliver_overlapping(const void* pointer, u32 bytes);  // those of this block: it sees its own
void deliver_all(Block& block);

// ---- memory.cpp
bool in_shared(const void* pointer);
u32 offset_in_shared(u32 address, u32 bytes, const char* what);
void check_range(const void* pointer, u32 bytes, bool writes, const char* what);
void look_at_shared(u32 offset, u32 bytes, Use use);

}  // namespace machine
