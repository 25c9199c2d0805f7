// Fibers, and which of them runs next.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "state.hpp"

namespace machine {

Machine m;

namespace {

constexpr u64 STACK_MARK = 0x5AFE57AC4B07704FULL;

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
void describe_waiting() {
    size_t at = strlen(m.report->text);
    for (auto& grid : m.grids)
        for (Block& block : grid->blocks)
            for (Warp& warp : block.warps)
                for (Lane& lane : warp.lanes) {
                    if (lane.left || !lane.started || at > sizeof m.report->text - 120) continue;
                    const Lane& first = warp.lanes[0];
                    if (lane.number && !first.left && !strcmp(first.waits, lane.waits) && first.waits_for == lane.waits_for) continue;
                    at += snprintf(m.report->text + at, sizeof m.report->text - at, "\n  stream %u block %u warp %d lane %d: %s %u",
                                   grid->launch->stream, block.number.x, warp.number, lane.number, lane.waits, lane.waits_for);
                }
}

Lane* lane_of(Warp* warp) {
    const u32 start = m.random.below(32);
    const u32 turned = warp->ready >> start | (start ? warp->ready << (32 - start) : 0);
    const int lane = (start + __builtin_ctz(turned)) & 31;
    warp->ready &= ~(1u << lane);
    queue(*warp);
    return &warp->lanes[lane];
}

void lane_main() {
    Lane& lane = me();
    const Launch& launch = *my_block().grid->launch;
    launch.body(launch.slots);
    u64 mark;
    memcpy(&mark, lane.stack, sizeof mark);
    if (mark != STACK_MARK) fail("a lane needs more than %zu bytes of stack", STACK);
    lane_left(lane);
    Lane* next = next_lane();
    if (!next) _longjmp(m.out, 1);
    run(next);
}

}  // namespace

void fail(const char* format, ...) {
    char text[1024], where[160] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (m.running) {
        const Lane& lane = me();
        const int at = m.streams > 1 ? snprintf(where, sizeof where, "stream %u, ", stream()) : 0;
        snprintf(where + at, sizeof where - at, "block %u, warp %d, lane %d: ", lane.warp->block->number.x, lane.warp->number,
                 lane.number);
    }
    snprintf(m.report->text, sizeof m.report->text, "%s%s", where, text);
    m.failed = true;
    _longjmp(m.out, 1);
}

void queue(Warp& warp) {
    if (warp.queued || !warp.ready) return;
    warp.queued = true;
    (warp.slow ? m.ready_slow : m.ready).push_back(&warp);
}
void wake(Lane* lane) {
    lane->warp->ready |= 1u << lane->number;
    lane->waits = "";
    queue(*lane->warp);
}
void release(Warp& warp, u32 without) {
    warp.ready |= ~without;
    for (Lane& lane : warp.lanes) lane.waits = "";
    queue(warp);
}
void wake_all(std::vector<Lane*>& lanes) {
    for (Lane* lane : lanes) wake(lane);
    lanes.clear();
}
void something_happened() { m.stale = 0; }

Lane* next_lane() {
    if (m.running) settle();
    ++m.clock;
    if (!m.storing.empty() && m.random.one_in(m.eagerness)) deliver_store();
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
        if (!m.storing.empty() && (m.pausing.empty() || m.random.one_in(4))) {
            deliver_store();
            continue;
        }
        if (!m.pausing.empty()) {
            if (++m.stale > m.patience) break;
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

void block_on(const char* what, u32 which) {
    Lane& lane = me();
    lane.waits = what, lane.waits_for = which;
    if (_setjmp(lane.at) == 0) run(next_lane());
}

u32 draw(u32 choices) { return m.random.below(choices); }

void pause() {
    m.pausing.push_back(m.running);
    block_on("somebody else");
}

}  // namespace machine
