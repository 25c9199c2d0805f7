// Launches: their blocks, when they start, and the entry from the host.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "state.hpp"

namespace machine {
namespace {

unsigned char* new_stack() {
    if (m.stacks_used + STACK > m.stacks_bytes) fail("more lanes than stacks");
    unsigned char* stack = m.stacks + m.stacks_used;
    m.stacks_used += STACK;
    return stack;
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

// The block lets the launch behind this one start, which it does when all blocks have.
void let_go(Block& block) {
    if (block.let_go) return;
    block.let_go = true;
    Grid& grid = *block.grid;
    if (--grid.held == 0 && grid.after && !grid.after->started) start_grid(*grid.after);
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
    const Launch& launch = *grid.launch;
    for (Block& block : grid.blocks) {
        block.shared_bytes = launch.shared + launch.static_shared;
        block.shared = (unsigned char*)aligned_alloc(1024, (block.shared_bytes + 1023) / 1024 * 1024 + 1024);
        memset(block.shared, POISON, block.shared_bytes);
        block.static_bytes = launch.shared;
        if (m.races) block.order = std::make_unique<Order>(block.shared_bytes, (int)block.warps.size());
        for (Warp& warp : block.warps) {
            warp.slow = m.random.one_in(8);
            for (Lane& lane : warp.lanes) {
                lane.stack = new_stack();
                lane.knows.at[warp.number] = 1;
            }
            warp.ready = ~0u;
            queue(warp);
        }
    }
}

void lane_left(Lane& lane) {
    lane.left = true;
    lane.warp->left |= 1u << lane.number;
    Block& block = *lane.warp->block;
    Grid& grid = *block.grid;
    something_happened();
    if (--block.living) return;
    if (block.copies) fail("the block ends with %d copies under way", block.copies);
    for (int i = 0; i < 16; ++i)
        if (block.named[i].arrived) fail("the block ends with %d threads at named barrier %d", block.named[i].arrived, i);
    if (--grid.living == 0 && grid.after) wake_all(grid.after->waiting);
    let_go(block);
}

Index thread_index() { return me().thread; }
Index block_index() { return my_block().number; }
Index block_size() { return {my_block().grid->launch->block, 1, 1}; }
Index grid_size() { return {my_block().grid->launch->grid, 1, 1}; }
u32 multiprocessor() { return my_block().number.x; }
u64 clock() { return m.clock; }

void wait_for_predecessor() {
    Grid& grid = *my_block().grid;
    if (!grid.before || grid.before->living == 0) return;
    grid.waiting.push_back(m.running);
    block_on("the launch before");
}
void let_successor_start() { let_go(my_block()); }

}  // namespace machine

extern "C" int machine_emulate(const machine::Launch* launches, int count, const machine::Range* ranges, int range_count,
                               machine::u64 seed, int races, machine::Report* report) {
    using namespace machine;
    m.random.state = seed * 0x9E3779B97F4A7C15ULL + 0x1234567ULL;
    for (int i = 0; i < 8; ++i) m.random.next();
    static const u32 SPREAD[] = {2, 16, 256};
    m.stickiness = SPREAD[m.random.below(3)], m.eagerness = SPREAD[m.random.below(3)];
    m.range = ranges, m.ranges_count = range_count, m.report = report, m.races = races != 0;
    m.failed = false, m.stale = 0, m.clock = 0, m.running = nullptr, m.copies_made = m.copied_bytes = 0;
    report->text[0] = 0;
    size_t lanes = 0;
    for (int i = 0; i < count; ++i) lanes += (size_t)launches[i].grid * launches[i].block;
    if (!enough_stacks(lanes)) {
        snprintf(report->text, sizeof report->text, "no memory for %zu stacks", lanes);
        return 1;
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
