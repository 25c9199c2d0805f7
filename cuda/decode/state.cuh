// What launches leave to one another: `state`, which is 256 bytes {u64 ticket; u32 used[2]: how many 16-byte values of each
// buffer were written} and two buffers of `half` bytes for h, all zero before the first launch. And clock stamps, for tools.
#pragma once
#include "shape.cuh"

DEVICE u8* hidden_buffer(const Arguments& p, int parity) { return p.state + STATE_HEADER + parity * p.half; }

// Which of the two buffers this launch uses: every block takes a ticket, and a launch is BLOCKS tickets.
DEVICE int take_parity(const Arguments& p) { return (int)(atomicAdd((u64*)p.state, 1ULL) / BLOCKS & 1); }

// Clear what the launch before this one wrote; the next one writes there. `written`: 16-byte values that this launch writes.
DEVICE void clear_old(const Arguments& p, int parity, u32 written, int thread) {
    u32* const used = (u32*)(p.state + 8);
    uint4* const old = (uint4*)hidden_buffer(p, parity ^ 1);
    const u32 values = used[parity ^ 1];
    for (u32 i = blockIdx.x * FINISHERS * 32 + thread; i < values; i += BLOCKS * FINISHERS * 32)
        old[i] = make_uint4(0, 0, 0, 0);
    if (blockIdx.x == 0 && thread == 0) used[parity] = written;
}

// TRACE=1, for tuning: clock stamps behind the two buffers, 16 places a block (`state` must be BLOCKS * 128 bytes longer than
// plan.py says). A later stamp of the same number overwrites an earlier one.
//   warp 0    (for one token: of its own piece of a unit, its own expert of a stage)
//             0 started; 1 the launch before is over; 2 routes sorted; 3 first unit in shared memory; 4 W13 done;
//             6 h of the first stage of W2 seen; 7 W2 done; 8 out stored; where columns are tokens 11 and 12 the second and
//             the last unit in shared memory, 5 the first stage of W2, 13 h of the last one seen
//   producer  9 has asked for the first unit; 10 for everything
//   finisher  14 has stored h of the last unit
#ifndef TRACE
#define TRACE 0
#endif
DEVICE void stamp(const Arguments& p, int i, int thread = 0) {
    if (TRACE && threadIdx.x == thread) ((long long*)hidden_buffer(p, 2))[blockIdx.x * 16 + i] = clock64();
}

// 15: the multiprocessor's number, plus 1024.
DEVICE void stamp_processor(const Arguments& p) {
    const u32 id = multiprocessor();
    if (TRACE && threadIdx.x == 0) ((long long*)hidden_buffer(p, 2))[blockIdx.x * 16 + 15] = 1024 + id;
}
