// The emulated machine: fibers, the order in which they run, barriers, copies, and what may be read and written when.
//
// What it checks, beside doing it: every access lies in shared memory or in a range that the caller named (and may be
// written), bulk copies have their alignment, lanes of a warp meet in the same collective, no barrier is used before it is made,
// no copy is under way when a block ends, nobody waits for ever. And order (order.hpp): no two accesses of shared memory, one
// of them a write, that barriers do not order.
#include "host.hpp"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <map>
#include <memory>
#include <vector>

#include "order.hpp"

namespace machine {
namespace {

constexpr size_t STACK = 64 << 10;
constexpr u32 SHARED_BASE = 1024;  // the address of a block's first byte of shared memory
constexpr int STALE_LIMIT = 200;   // rounds in which only those ran who look again, before nobody is said to go on
constexpr u64 STACK_MARK = 0x5AFE57AC4B07704FULL;

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
};

struct Grid {
    const Launch* launch = nullptr;
    Grid *before = nullptr, *after = nullptr;
    std::vector<Block> blocks;
    int living = 0, held = 0;  // blocks that have not ended; that have not let the successor start
    bool started = false;
    std::vector<Lane*> waiting;  // for the grid before
};

struct Machine {
    Random random{1};
    std::vector<std::unique_ptr<Grid>> grids;
    std::vector<Warp*> ready, ready_slow;
    std::vector<Lane*> pausing;
    std::vector<Copy> copies;
    const Range* range = nullptr;
    size_t ranges_count = 0;
    Lane* running = nullptr;
    unsigned char* stacks = nullptr;
    size_t stacks_bytes = 0, stacks_used = 0;
    jmp_buf out;
    ucontext_t context;
    u64 clock = 0;
    int stale = 0;
    u32 stickiness = 16, eagerness = 16;
    bool races = true, failed = false;
    Report* report = nullptr;
    u64 copies_made = 0, copied_bytes = 0;
};
Machine m;

Lane& me() { return *m.running; }
Block& my_block() { return *m.running->warp->block; }

void tell(const char* format, va_list arguments) {
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    char where[160] = "";
    if (m.running) {
        const Lane& lane = me();
        snprintf(where, sizeof where, "block %u, warp %d, lane %d: ", lane.warp->block->number.x, lane.warp->number, lane.number);
    }
    snprintf(m.report->text, sizeof m.report->text, "%s%s", where, text);
}

// ---- who runs next
void queue(Warp* warp) {
    if (warp->queued || !warp->ready) return;
    warp->queued = true;
    (warp->slow ? m.ready_slow : m.ready).push_back(warp);
}
void wake(Lane* lane) {
    lane->warp->ready |= 1u << lane->number;
    lane->waits = "";
    queue(lane->warp);
}
// All lanes but `without` go on.
void release(Warp& warp, u32 without) {
    warp.ready |= ~without;
    for (Lane& lane : warp.lanes) lane.waits = "";
    queue(&warp);
}
void wake_all(std::vector<Lane*>& lanes) {
    for (Lane* lane : lanes) wake(lane);
    lanes.clear();
}
Warp* take(std::vector<Warp*>& from) {
    while (!from.empty()) {
        const u32 i = m.random.below((u32)from.size());
        Warp* warp = from[i];
        from[i] = from.back(), from.pop_back();
        warp->queued = false;
        if (warp->ready) return warp;
    }
    return nullptr;
}
void something_happened() { m.stale = 0; }

void complete_if_done(Barrier& b) {
    if (b.pending || b.bytes) return;
    b.passed[b.phase & 1] = b.arriving;
    b.passed[b.phase & 1].at[b.place] = b.phase + 1;
    b.arriving = Knowledge{};
    ++b.phase, b.pending = b.count;
    something_happened();
    wake_all(b.waiting);
}

// A part of a copy arrives, or the last one.
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

void describe_waiting() {
    size_t at = strlen(m.report->text);
    for (auto& grid : m.grids)
        for (Block& block : grid->blocks)
            for (Warp& warp : block.warps)
                for (Lane& lane : warp.lanes) {
                    if (lane.left || !lane.started || at > sizeof m.report->text - 120) continue;
                    const Lane& first = warp.lanes[0];
                    if (lane.number && !first.left && !strcmp(first.waits, lane.waits) && first.waits_for == lane.waits_for) continue;
                    at += snprintf(m.report->text + at, sizeof m.report->text - at, "\n  block %u warp %d lane %d: %s %u",
                                   block.number.x, warp.number, lane.number, lane.waits, lane.waits_for);
                }
}

void start_grid(Grid& grid);

Lane* lane_of(Warp* warp) {
    const u32 start = m.random.below(32);
    const u32 turned = warp->ready >> start | (start ? warp->ready << (32 - start) : 0);
    const int lane = (start + __builtin_ctz(turned)) & 31;
    warp->ready &= ~(1u << lane);
    queue(warp);
    return &warp->lanes[lane];
}

// nullptr: all have left.
Lane* next_lane() {
    ++m.clock;
    if (!m.copies.empty() && m.random.one_in(m.eagerness)) deliver_one();
    if (!m.pausing.empty() && m.random.one_in(64)) {
        const u32 i = m.random.below((u32)m.pausing.size());
        Lane* lane = m.pausing[i];
        m.pausing[i] = m.pausing.back(), m.pausing.pop_back();
        wake(lane);
    }
    for (;;) {
        Warp* own = m.running ? m.running->warp : nullptr;
        if (own && own->ready && !m.random.one_in(m.stickiness)) return lane_of(own);
        if (m.ready.empty() || m.random.one_in(256))
            if (Warp* warp = take(m.ready_slow)) return lane_of(warp);
        if (Warp* warp = take(m.ready)) return lane_of(warp);
        if (Warp* warp = take(m.ready_slow)) return lane_of(warp);
        if (!m.copies.empty()) {
            deliver_one();
            continue;
        }
        if (!m.pausing.empty()) {
            if (++m.stale > STALE_LIMIT) break;
            wake_all(m.pausing);
            continue;
        }
        bool living = false;
        for (auto& grid : m.grids) living |= grid->living != 0;
        if (!living) return nullptr;
        break;
    }
    m.running = nullptr;
    snprintf(m.report->text, sizeof m.report->text, "nobody goes on; who waits, and for what:");
    describe_waiting();
    m.failed = true;
    _longjmp(m.out, 1);
}

void lane_main();

void run(Lane* lane) {
    m.running = lane;
    if (lane->started) _longjmp(lane->at, 1);
    lane->started = true;
    getcontext(&m.context);
    m.context.uc_stack.ss_sp = lane->stack;
    m.context.uc_stack.ss_size = STACK;
    m.context.uc_link = nullptr;
    memcpy(lane->stack, &STACK_MARK, sizeof STACK_MARK);
    makecontext(&m.context, lane_main, 0);
    setcontext(&m.context);
}

// Somebody else runs until this lane is woken.
void block_on(const char* what, u32 which = 0) {
    Lane& lane = me();
    lane.waits = what, lane.waits_for = which;
    if (_setjmp(lane.at) == 0) run(next_lane());
}

void leave() {
    Lane& lane = me();
    u64 mark;
    memcpy(&mark, lane.stack, sizeof mark);
    if (mark != STACK_MARK) fail("a lane needs more than %zu bytes of stack", STACK);
    lane.left = true;
    lane.warp->left |= 1u << lane.number;
    Block& block = *lane.warp->block;
    Grid& grid = *block.grid;
    something_happened();
    if (--block.living == 0) {
        if (block.copies) fail("the block ends with %d copies under way", block.copies);
        for (int i = 0; i < 16; ++i)
            if (block.named[i].arrived) fail("the block ends with %d threads at named barrier %d", block.named[i].arrived, i);
        if (!block.let_go) block.let_go = true, --grid.held;
        if (--grid.living == 0 && grid.after) wake_all(grid.after->waiting);
        if (grid.held == 0 && grid.after && !grid.after->started) start_grid(*grid.after);
    }
}

void lane_main() {
    Grid& grid = *my_block().grid;
    grid.launch->body(grid.launch->slots);
    leave();
    Lane* next = next_lane();
    if (!next) _longjmp(m.out, 1);
    run(next);
}

unsigned char* new_stack() {
    if (m.stacks_used + STACK > m.stacks_bytes) fail("more lanes than stacks");
    unsigned char* stack = m.stacks + m.stacks_used;
    m.stacks_used += STACK;
    return stack;
}

void start_grid(Grid& grid) {
    grid.started = true;
    const Launch& launch = *grid.launch;
    for (Block& block : grid.blocks) {
        block.shared_bytes = launch.shared + launch.static_shared;
        block.shared = (unsigned char*)aligned_alloc(1024, (block.shared_bytes + 1023) / 1024 * 1024 + 1024);
        memset(block.shared, 0xCB, block.shared_bytes);
        block.static_bytes = launch.shared;
        if (m.races) block.order = std::make_unique<Order>(block.shared_bytes, (int)block.warps.size());
        for (Warp& warp : block.warps) {
            warp.slow = m.random.one_in(8);
            for (Lane& lane : warp.lanes) {
                lane.stack = new_stack();
                lane.knows.at[warp.number] = 1;
            }
            warp.ready = ~0u;
            queue(&warp);
        }
    }
}

void make_grids(const Launch* launches, int count) {
    for (int i = 0; i < count; ++i) {
        auto grid = std::make_unique<Grid>();
        grid->launch = &launches[i];
        grid->blocks.resize(launches[i].grid);
        grid->living = grid->held = (int)launches[i].grid;
        if (i) grid->before = m.grids.back().get(), m.grids.back()->after = grid.get();
        m.grids.push_back(std::move(grid));
    }
    for (auto& grid : m.grids) {
        u32 number = 0;
        for (Block& block : grid->blocks) {
            const u32 threads = grid->launch->block;
            block.grid = grid.get();
            block.number = {number++, 0, 0};
            block.warps = std::vector<Warp>(threads / 32);
            block.living = (int)threads;
            for (size_t w = 0; w < block.warps.size(); ++w) {
                Warp& warp = block.warps[w];
                warp.block = &block, warp.number = (int)w;
                for (int lane = 0; lane < 32; ++lane) {
                    warp.lanes[lane].warp = &warp, warp.lanes[lane].number = lane;
                    warp.lanes[lane].thread = {(u32)w * 32 + lane, 0, 0};
                }
            }
        }
    }
}

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
    if (block.order->use(offset, bytes, use, me().warp->number, me().number, me().knows, conflict))
        fail("race in shared memory: %s of byte %u, and %s by warp %d, lane %d before, are not ordered",
             use == Use::read ? "a read" : "a write", conflict.offset, conflict.copy ? "a copy" : conflict.write ? "a write" : "a read",
             conflict.warp, conflict.lane);
}

Barrier& barrier_at(u32 address, const char* what) {
    offset_in_shared(address, 8, what);
    Block& block = my_block();
    auto found = block.barriers.find(address);
    if (found == block.barriers.end() || !found->second.made) fail("%s at a barrier (shared address %u) that is not made yet", what, address);
    return found->second;
}

}  // namespace

void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    tell(format, arguments);
    va_end(arguments);
    m.failed = true;
    _longjmp(m.out, 1);
}

Index thread_index() { return me().thread; }
Index block_index() { return my_block().number; }
Index block_size() { return {my_block().grid->launch->block, 1, 1}; }
Index grid_size() { return {my_block().grid->launch->grid, 1, 1}; }
u32 multiprocessor() { return my_block().number.x; }
u64 clock() { return m.clock; }

// ---- warps
namespace {
// The lanes of a warp come together; the last one to come does `last`, which says whether they go on.
template <class Last>
void meet(const char* name, int count, Last last) {
    Lane& lane = me();
    Warp& warp = *lane.warp;
    if (warp.left) fail("%s: lanes %08x of the warp have left", name, warp.left);
    if (warp.arrived == 0) warp.meets = name, warp.count = count;
    if (strcmp(warp.meets, name) || warp.count != count) fail("lanes of a warp meet in %s and in %s", warp.meets, name);
    if (++warp.arrived < 32) return block_on(name);
    warp.arrived = 0;
    something_happened();
    if (!last(warp)) return block_on(name);
    release(warp, 1u << lane.number);
}

// After it, what any lane of the warp did before is known to all of them.
void join_lanes(Warp& warp) {
    if (!m.races) return;
    Knowledge all = warp.lanes[0].knows;
    for (int i = 1; i < 32; ++i) all.add(warp.lanes[i].knows);
    ++all.at[warp.number];
    for (Lane& lane : warp.lanes) lane.knows = all;
}
}  // namespace

void collective(const char* name, const u32* words, int count, Combine combine, u32* out, int results) {
    Warp& warp = *me().warp;
    const int number = me().number, generation = warp.generation & 1;
    memcpy(warp.in[number], words, count * sizeof(u32));
    meet(name, count, [&](Warp& w) {
        ++w.generation;
        Lane* last = m.running;
        m.running = nullptr;  // what `combine` touches is the machine's
        combine(w.in, w.out[generation]);
        m.running = last;
        return true;
    });
    memcpy(out, warp.out[generation][number], results * sizeof(u32));
}

void sync_warp() {
    meet("syncwarp", 0, [](Warp& warp) { return join_lanes(warp), true; });
}

// ---- thread blocks
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

void named_barrier(int id, int threads, bool wait) {
    Block& block = my_block();
    if (threads == 0) threads = (int)block.warps.size() * 32;
    if (id < 0 || id > 15 || threads % 32) fail("named barrier %d of %d threads", id, threads);
    meet(wait ? "bar.sync" : "bar.arrive", id * 4096 + threads, [&](Warp& warp) {
        join_lanes(warp);
        Named& b = block.named[id];
        if (b.arrived == 0) b.wanted = threads;
        if (b.wanted != threads) fail("named barrier %d: %d threads wanted here, %d there", id, threads, b.wanted);
        b.arriving.add(warp.lanes[0].knows);
        b.arrived += 32;
        if (wait) b.waiting.push_back(&warp);
        if (b.arrived < threads) return !wait;
        for (Warp* each : b.waiting) {
            for (Lane& lane : each->lanes) lane.knows.add(b.arriving);
            if (each != &warp) release(*each, 0);
        }
        b.arrived = 0, b.arriving = Knowledge{};
        b.waiting.clear();
        return true;
    });
}

// ---- barriers in shared memory
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
    b.arriving.add(me().knows);
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
    if (m.random.one_in(8)) {  // others first
        m.pausing.push_back(m.running);
        block_on("turn");
    }
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
    if (block.order) {
        Conflict conflict;
        if (block.order->copy(offset, bytes, b.place, b.phase, me().knows, me().warp->number, me().number, conflict))
            fail("race in shared memory: a copy to byte %u, and %s by warp %d, lane %d before, are not ordered", conflict.offset,
                 conflict.write ? "a write" : "a read", conflict.warp, conflict.lane);
    }
    memset(block.shared + offset, 0xCB, bytes);
    m.copies.push_back({&block, to, bytes, barrier, (const unsigned char*)from});
    ++block.copies;
    ++m.copies_made, m.copied_bytes += bytes;
}

// ---- memory
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
    memcpy(to, from, bytes);
}
void load_single(const void* from, void* to, u32 bytes) { load_global(from, to, bytes); }
void store_single(void* to, const void* from, u32 bytes) {
    if ((uintptr_t)to % bytes) fail("a store of %u bytes at %p: not aligned", bytes, to);
    check_range(to, bytes, true, "a store");
    memcpy(to, from, bytes);
    something_happened();
}
void prefetch(const void* pointer) { check_range(pointer, 1, false, "a prefetch"); }

void atomic(void* pointer, const void* by, void* before, u32 bytes, Atomic what) {
    if ((uintptr_t)pointer % bytes) fail("an atomic of %u bytes at %p: not aligned", bytes, pointer);
    if (in_shared(pointer)) look_at_shared((u32)((unsigned char*)pointer - my_block().shared), bytes, Use::atomic);
    else check_range(pointer, bytes, true, "an atomic");
    u64 old = 0, operand = 0;
    memcpy(&old, pointer, bytes), memcpy(&operand, by, bytes);
    const u64 now = what == Atomic::add ? old + operand : old | operand;
    memcpy(before, &old, bytes), memcpy(pointer, &now, bytes);
    something_happened();
}

void pause() {
    m.pausing.push_back(m.running);
    block_on("somebody else");
}

// ---- launches that overlap
void wait_for_predecessor() {
    Grid& grid = *my_block().grid;
    if (!grid.before || grid.before->living == 0) return;
    grid.waiting.push_back(m.running);
    block_on("the launch before");
}
void let_successor_start() {
    Block& block = my_block();
    if (block.let_go) return;
    block.let_go = true;
    Grid& grid = *block.grid;
    if (--grid.held == 0 && grid.after && !grid.after->started) start_grid(*grid.after);
}

// ---- plain accesses: the compiler calls these (hooks.cpp)
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
    if (writes) something_happened();
}

}  // namespace machine

using namespace machine;

extern "C" int machine_emulate(const Launch* launches, int count, const Range* ranges, int range_count, u64 seed, int races,
                               Report* report) {
    m.random.state = seed * 0x9E3779B97F4A7C15ULL + 0x1234567ULL;
    for (int i = 0; i < 8; ++i) m.random.next();
    static const u32 SPREAD[] = {2, 16, 256};
    m.stickiness = SPREAD[m.random.below(3)], m.eagerness = SPREAD[m.random.below(3)];
    m.range = ranges, m.ranges_count = range_count, m.report = report, m.races = races != 0;
    m.failed = false, m.stale = 0, m.clock = 0, m.running = nullptr, m.copies_made = m.copied_bytes = 0;
    report->text[0] = 0;
    size_t lanes = 0;
    for (int i = 0; i < count; ++i) lanes += (size_t)launches[i].grid * launches[i].block;
    if (m.stacks_bytes < lanes * STACK) {
        if (m.stacks) munmap(m.stacks, m.stacks_bytes);
        m.stacks_bytes = lanes * STACK;
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        m.stacks = (unsigned char*)mmap(nullptr, m.stacks_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (m.stacks == MAP_FAILED) {
            m.stacks = nullptr, m.stacks_bytes = 0;
            snprintf(report->text, sizeof report->text, "no memory for %zu stacks", lanes);
            return 1;
        }
    }
    m.stacks_used = 0;
    make_grids(launches, count);
    if (_setjmp(m.out) == 0) {
        start_grid(*m.grids[0]);
        run(next_lane());
    }
    m.running = nullptr;
    for (auto& grid : m.grids)
        for (Block& block : grid->blocks) free(block.shared);
    report->copies = m.copies_made, report->copied_bytes = m.copied_bytes, report->switches = m.clock;
    m.grids.clear(), m.ready.clear(), m.ready_slow.clear(), m.pausing.clear(), m.copies.clear();
    return m.failed ? 1 : 0;
}
