// Lanes of a warp come together; warps of a block come together at named barriers.
#include <string.h>

#include "state.hpp"

namespace machine {
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
    if (!last(warp)) return block_on(name);
    release(warp, 1u << lane.number);
}

// After it, what any lane of the warp did before is known to all of them.
void join_lanes(Warp& warp) {
    if (!m.races) return;
    Knowledge all = warp.lanes[0].knows;
    for (int i = 1; i < 32; ++i) all.add(warp.lanes[i].knows);
    all.at[warp.number] += 2, all.lanes[warp.number] = 0;
    for (Lane& lane : warp.lanes) lane.knows = all, lane.ahead = false;
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

}  // namespace machine
