// Which accesses of shared memory are ordered: vector clocks, as in FastTrack (Flanagan, Freund, PLDI 2009), for warps and copies.
//
// A warp's clock goes up by two at its __syncwarp's (and barriers of whole warps): what a lane did before one is known to the
// warp's lanes after it. Between two of them, a lane that has arrived at a barrier is one ahead: what it does then is not
// known to those who waited there. Shuffles and votes order nothing. A bulk copy is known to whoever has waited for its
// barrier's phase.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

namespace machine {

// What a lane knows: of each warp, everything before a clock and, of some lanes, what they did at it; of each barrier, its phases.
struct Knowledge {
    static constexpr int WARPS = 32, SIZE = 128;
    uint32_t at[SIZE] = {}, lanes[WARPS] = {};
    void add(const Knowledge& other) {
        for (int i = 0; i < WARPS; ++i) {
            const uint32_t here = at[i] >= other.at[i] ? lanes[i] : 0, there = other.at[i] >= at[i] ? other.lanes[i] : 0;
            lanes[i] = here | there;
        }
        for (int i = 0; i < SIZE; ++i) at[i] = at[i] > other.at[i] ? at[i] : other.at[i];
    }
    bool has(int place, uint32_t clock, int lane) const {
        return clock < at[place] || (place < WARPS && clock == at[place] && lanes[place] >> lane & 1);
    }
};

enum class Use { read, write, atomic };

struct Conflict {
    uint32_t offset;
    int warp, lane;
    bool write, copy;
};

class Order {
  public:
    Order(size_t bytes, int warps)
        : warps_(warps), units_(bytes / UNIT + 2), written_((Write*)zeros(units_ * sizeof(Write))),
          read_((Read*)zeros(units_ * warps * sizeof(Read))) {}
    ~Order() { munmap(written_, units_ * sizeof(Write)), munmap(read_, units_ * warps_ * sizeof(Read)); }
    Order(const Order&) = delete;
    Order& operator=(const Order&) = delete;

    // True: `conflict` says with what. `ahead`: the lane has arrived at a barrier since its warp's last __syncwarp.
    bool use(uint32_t offset, uint32_t bytes, Use use, int warp, int lane, bool ahead, const Knowledge& knows, Conflict& conflict) {
        for (uint32_t unit = offset / UNIT; unit <= (offset + bytes - 1) / UNIT; ++unit) {
            if (conflicts(unit, use, warp, lane, knows, conflict)) return true;
            const uint32_t now = knows.at[warp];
            if (use == Use::read) {
                Read& r = read_[(size_t)unit * warps_ + warp];
                if (r.clock != now) r = {now, 0, 0};
                (ahead ? r.lanes_ahead : r.lanes) |= 1u << lane;
            } else {
                write(unit, {now + ahead, (uint16_t)warp, (uint8_t)lane, use == Use::atomic});
            }
        }
        return false;
    }

    // Asked for by a lane; it is known to those who know phase `phase` of the barrier `place`.
    bool copy(uint32_t offset, uint32_t bytes, int place, uint32_t phase, const Knowledge& knows, int warp, int lane,
              Conflict& conflict) {
        for (uint32_t unit = offset / UNIT; unit < (offset + bytes) / UNIT; ++unit) {
            if (conflicts(unit, Use::write, warp, lane, knows, conflict)) return true;
            write(unit, {phase, (uint16_t)place, 0, 0});
        }
        return false;
    }

  private:
    static constexpr uint32_t UNIT = 2;  // bytes that are looked at together
    struct Write {
        uint32_t clock;
        uint16_t place;
        uint8_t lane, atomic;
    };
    struct Read {
        uint32_t clock, lanes, lanes_ahead;
    };

    bool conflicts(uint32_t unit, Use use, int warp, int lane, const Knowledge& knows, Conflict& conflict) const {
        const Write& w = written_[unit];
        const bool there = w.clock || w.place;
        const bool both_atomic = use == Use::atomic && w.atomic;
        if (there && !both_atomic && !knows.has(w.place, w.clock, w.lane) && !(w.place == warp && w.lane == lane)) {
            conflict = {unit * UNIT, w.place, w.lane, true, w.place >= Knowledge::WARPS};
            return true;
        }
        if (use == Use::read) return false;
        for (int other = 0; other < warps_; ++other) {
            const Read& r = read_[(size_t)unit * warps_ + other];
            if (r.clock == 0 || r.clock < knows.at[other]) continue;
            uint32_t others = r.lanes_ahead;
            if (r.clock > knows.at[other]) others |= r.lanes;
            else others |= r.lanes & ~knows.lanes[other];
            if (other == warp) others &= ~(1u << lane);
            if (!others) continue;
            conflict = {unit * UNIT, other, __builtin_ctz(others), false, false};
            return true;
        }
        return false;
    }
    void write(uint32_t unit, Write w) {
        written_[unit] = w;
        memset(&read_[(size_t)unit * warps_], 0, warps_ * sizeof(Read));
    }

    // Pages of their own: a heap would keep most of what many blocks took.
    static void* zeros(size_t bytes) {
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        return memory;
    }

    int warps_;
    size_t units_;
    Write* written_;
    Read* read_;
};

}  // namespace machine
