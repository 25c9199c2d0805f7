// Launches: their blocks, when they start, and the entry from the host.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "state.hpp"

namespace machine {
namespace {

constexpr size_t MANY_LANES = 1 << 14;  // after so many, memory goes back to the system

unsigned char* new_stack() {
    if (!m.free_stacks.empty()) {
        unsigned char* stack = m.free_stacks.back();
        m.free_stacks.pop_back();
        return stack;
    }
    if (m.stacks_used + STACK > m.stacks_bytes) fail("more lanes than stacks");
    unsigned char* stack = m.stacks + m.stacks_used;
    m.stacks_used += STACK;
    return stack;
}

void make_grids(const Launch* launches, int count) {
    std::map<u32, Grid*> last;
    std::map<u32, bool> slow;
    for (int i = 0; i < count; ++i) {
        auto grid = std::make_unique<Grid>();
        grid->launch = &launches[i];
        grid->blocks.resize(launches[i].grid);
        grid->living = grid->held = (int)launches[i].grid;
        Grid*& before = last[launches[i].stream];
        if (before) before->after = grid.get(), grid->before = before;
        else slow[launches[i].stream] = m.random.one_in(4);
        grid->slow = slow[launches[i].stream];
        before = grid.get();
        m.grids.push_back(std::move(grid));
    }
    m.streams = (int)last.size();
    for (auto& grid : m.grids) {
        u32 number = 0;
        for (Block& block : grid->blocks) {
            const u32 threads = grid->launch->block;
            block.grid = grid.get();
            block.number = {number++, 0, 0};
            block.living = (int)threads;
        }
    }
}

void begin_block(Grid& grid) {
    const Launch& launch = *grid.launch;
    Block& block = grid.blocks[grid.begun++];
    block.shared_bytes = launch.shared + launch.static_shared;
    block.shared = (unsigned char*)aligned_alloc(1024, (block.shared_bytes + 1023) / 1024 * 1024 + 1024);
    memset(block.shared, POISON, block.shared_bytes);
    block.static_bytes = launch.shared;
    block.warps = std::vector<Warp>(launch.block / 32);
    if (m.races) block.order = std::make_unique<Order>(block.shared_bytes, (int)block.warps.size());
    for (size_t w = 0; w < block.warps.size(); ++w) {
        Warp& warp = block.warps[w];
        warp.block = &block, warp.number = (int)w;
        warp.slow = grid.slow || m.random.one_in(8);
        for (int number = 0; number < 32; ++number) {
            Lane& lane = warp.lanes[number];
            lane.warp = &warp, lane.number = number;
            lane.thread = {(u32)w * 32 + number, 0, 0};
            lane.stack = new_stack();
            lane.knows.at[warp.number] = 1;
        }
        warp.ready = ~0u;
        queue(warp);
    }
}

// The block lets the launch behind this one start, which it does when all blocks have.
void let_go(Block& block) {
    if (block.let_go) return;
    block.let_go = true;
    Grid& grid = *block.grid;
    if (--grid.held == 0 && grid.after && grid.after->launch->programmatic) start_grid(*grid.after);
}

bool enough_stacks(size_t lanes) {
    if (m.stacks_bytes >= lanes * STACK) return true;
    if (m.stacks) munmap(m.stacks, m.stacks_bytes);
    m.stacks_bytes = lanes * STACK;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    m.stacks = (unsigned char*)mmap(nullptr, m.stacks_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (m.stacks != MAP_FAILED) return true;
    m.stacks = nullptr, m.stacks_bytes = 0;
    return false;
}

}  // namespace

void start_grid(Grid& grid) {
    grid.started = true;
    const size_t at_once = grid.launch->resident ? grid.launch->resident : grid.blocks.size();
    while (grid.begun < grid.blocks.size() && grid.begun < at_once) begin_block(grid);
}

void lane_left(Lane& lane) {
    settle();
    if (m.leaving) m.free_stacks.push_back(m.leaving);
    m.leaving = lane.stack;  // free when another lane runs
    lane.left = true;
    lane.warp->left |= 1u << lane.number;
    Block& block = *lane.warp->block;
    Grid& grid = *block.grid;
    something_happened();
    if (--block.living) return;
    if (block.copies) fail("the block ends with %d copies under way", block.copies);
    for (int i = 0; i < 16; ++i)
        if (block.named[i].arrived) fail("the block ends with %d threads at named barrier %d", block.named[i].arrived, i);
    if (grid.begun < grid.blocks.size()) begin_block(grid);
    if (--grid.living == 0) {
        for (Block& each : grid.blocks) deliver_all(each);
        if (grid.after) wake_all(grid.after->waiting);
    }
    let_go(block);
    if (grid.living == 0 && grid.after && !grid.after->started) start_grid(*grid.after);
}

Index thread_index() { return me().thread; }
Index block_index() { return my_block().number; }
Index block_size() { return {my_block().grid->launch->block, 1, 1}; }
Index grid_size() { return {my_block().grid->launch->grid, 1, 1}; }
u32 multiprocessor() { return my_block().number.x; }
u64 clock() { return m.clock; }
u32 stream() { return my_block().grid->launch->stream; }

void wait_for_predecessor() {
    Grid& grid = *my_block().grid;
    if (!grid.before || grid.before->living == 0) return;
    grid.waiting.push_back(m.running);
    block_on("the launch before");
}
void let_successor_start() { let_go(my_block()); }

}  // namespace machine

extern "C" int machine_emulate(const machine::Launch* launches, int count, const machine::Range* ranges, int range_count,
                               machine::u64 seed, int races, int patience, machine::Report* report) {
    using namespace machine;
    m.random.state = seed * 0x9E3779B97F4A7C15ULL + 0x1234567ULL;
    for (int i = 0; i < 8; ++i) m.random.next();
    static const u32 SPREAD[] = {2, 16, 256};
    m.stickiness = SPREAD[m.random.below(3)], m.eagerness = SPREAD[m.random.below(3)];
    m.range = ranges, m.ranges_count = range_count, m.report = report, m.races = races != 0;
    m.patience = patience;
    m.failed = false, m.stale = 0, m.clock = 0, m.running = nullptr, m.copies_made = m.copied_bytes = 0;
    report->text[0] = 0;
    size_t lanes = 0;
    for (int i = 0; i < count; ++i) lanes += (size_t)launches[i].grid * launches[i].block;
    if (!enough_stacks(lanes)) {
        snprintf(report->text, sizeof report->text, "no memory for %zu stacks", lanes);
        return 1;
    }
    m.stacks_used = 0, m.leaving = nullptr;
    make_grids(launches, count);
    if (_setjmp(m.out) == 0) {
        for (auto& grid : m.grids)
            if (!grid->before) start_grid(*grid);
        run(next_lane());
    }
    m.running = nullptr;
    for (auto& grid : m.grids)
        for (Block& block : grid->blocks) free(block.shared);
    report->copies = m.copies_made, report->copied_bytes = m.copied_bytes, report->switches = m.clock;
    m.grids.clear(), m.ready.clear(), m.ready_slow.clear(), m.pausing.clear(), m.copies.clear();
    m.storing.clear(), m.fresh.clear(), m.free_stacks.clear();
    madvise(m.stacks, m.stacks_bytes, MADV_DONTNEED);
    if (lanes > MANY_LANES) malloc_trim(0);
    return m.failed ? 1 : 0;
}
