// Which accesses of shared memory are ordered: vector clocks, as in FastTrack (Flanagan, Freund, PLDI 2009), for warps and copies.
//
// A warp's clock counts its __syncwarp's (and barriers of whole warps): what a lane did before one is known to the warp's
// lanes after it. Shuffles and votes order nothing. A bulk copy is known to whoever has waited for its barrier's phase.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace machine {

struct Knowledge {  // of a lane: up to where it knows each warp's past (its own: the clock), and each barrier's phases
    static constexpr int WARPS = 32, SIZE = 128;
    uint32_t at[SIZE] = {};
    void add(const Knowledge& other) {
        for (int i = 0; i < SIZE; ++i) at[i] = at[i] > other.at[i] ? at[i] : other.at[i];
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
        : warps_(warps), written_((Write*)calloc(bytes / UNIT + 2, sizeof(Write))),
          read_((Read*)calloc((bytes / UNIT + 2) * warps, sizeof(Read))) {}
    ~Order() { free(written_), free(read_); }
    Order(const Order&) = delete;
    Order& operator=(const Order&) = delete;

    // True: `conflict` says with what.
    bool use(uint32_t offset, uint32_t bytes, Use use, int warp, int lane, const Knowledge& knows, Conflict& conflict) {
        for (uint32_t unit = offset / UNIT; unit <= (offset + bytes - 1) / UNIT; ++unit) {
            if (conflicts(unit, use, warp, lane, knows, conflict)) return true;
            const uint32_t now = knows.at[warp];
            if (use == Use::read) {
                Read& r = read_[(size_t)unit * warps_ + warp];
                if (r.clock != now) r = {now, 0};
                r.lanes |= 1u << lane;
            } else {
                write(unit, {now, (uint16_t)warp, (uint8_t)lane, use == Use::atomic});
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
        uint32_t clock, lanes;
    };

    bool conflicts(uint32_t unit, Use use, int warp, int lane, const Knowledge& knows, Conflict& conflict) const {
        const Write& w = written_[unit];
        const bool there = w.clock || w.place;
        const bool both_atomic = use == Use::atomic && w.atomic;
        if (there && !both_atomic && !(w.clock < knows.at[w.place] || (w.place == warp && w.lane == lane))) {
            conflict = {unit * UNIT, w.place, w.lane, true, w.place >= Knowledge::WARPS};
            return true;
        }
        if (use == Use::read) return false;
        for (int other = 0; other < warps_; ++other) {
            const Read& r = read_[(size_t)unit * warps_ + other];
            if (r.clock == 0 || r.clock < knows.at[other]) continue;
            const uint32_t others = other == warp ? r.lanes & ~(1u << lane) : r.lanes;
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

    int warps_;
    Write* written_;
    Read* read_;
};

}  // namespace machine
