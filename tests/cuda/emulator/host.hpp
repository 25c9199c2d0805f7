// What the host hands to the machine, and what it gets back. emulator.py has the same in ctypes.
#pragma once
#include "machine.hpp"

namespace machine {

constexpr int MOST_SLOTS = 64;

struct Launch {
    void (*body)(const u64* slots);  // calls the kernel with its parameters
    const u64* slots;  // MOST_SLOTS of them
    const unsigned char *constants, *constants_end;  // where the kernel's own constants are
    u32 grid, block, shared, static_shared;  // blocks, threads of a block, bytes
    u32 stream;    // launches of one stream follow each other, those of several run side by side
    u32 resident;  // so many blocks at once, begun in order (0: all)
    u32 programmatic;  // may begin before the launch before on its stream has ended
};
struct Range {  // memory that a kernel may touch
    const unsigned char* first;
    size_t bytes;
    int writable;
    int stream;  // whose launches may touch it (-1: all)
    const char* name;
};
struct Report {
    char text[4096];
    u64 switches, copies, copied_bytes;
};

}  // namespace machine

// `count` launches, each of which begins when the one before on its stream has ended or, where programmatic, lets it.
// `patience`: rounds in which only those ran who look again, before nobody is said to go on. 0: all went well.
extern "C" int machine_emulate(const machine::Launch* launches, int count, const machine::Range* ranges, int range_count,
                               machine::u64 seed, int races, int patience, machine::Report* report);
