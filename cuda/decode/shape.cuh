// Sizes of one compiled variant, known at compile time: defines that the host (plan.py) chooses.
//
//   H, I, E, TOP_K       the layer: hidden size, intermediate size, experts, routes of a token
//   GROUP                values of k that share a scale (FP8: 128)
//   MAX_M                the most tokens of a launch
//   BLOCKS               the grid: one thread block a multiprocessor
//   GATED, RELU2         the activation: silu (RELU2: relu squared) of the gate, times up where GATED
//   HALF_X               16-bit floats outside the kernel (x of 4-bit weights, out) are fp16, else bf16
//   SCALE, ROUTE_WEIGHT  types of 4-bit weights' scales and of the routes' weights: 0 bf16, 1 fp16, 2 fp32
//   ID_64                the routes' ids are int64, else int32
//   CONSUMERS            warps that compute
//   FINISHERS            warps that finish units
//   GATHERERS            warps that gather h (hidden.cuh), 0 where nobody does
//   PARTIALS             buffers between consumers and finishers
//   STAGES, STAGE_BYTES  the ring
//   DEPTH                stages under way at once
//   ONE_TOKEN_PIECES     of a unit, with a barrier each (u4_one.cuh)
//   HIDDEN_BUFFERS       stages for which h is gathered ahead (hidden.cuh)
//   STAGE_EXPERTS        experts whose slices of W2 make a stage
//   ROW_BLOCKS           the most 8-row blocks of W2 that one thread block owns
//   SHARED_ROOM          bytes of shared memory behind the ring
//   STRICT, TRACE        for tools: work.cuh, state.cuh
#pragma once
#include "ptx.cuh"

constexpr int PRODUCER = CONSUMERS, FINISHER = CONSUMERS + 1, GATHERER = FINISHER + FINISHERS;  // warp numbers
constexpr int CONSUMER_THREADS = CONSUMERS * 32;
constexpr int WARPS = GATHERER + GATHERERS, THREADS = WARPS * 32;
constexpr int UNITS = GATED ? I / 8 : I / 16;                // of an expert: 8 gate and 8 up rows each, or 16 rows
constexpr int H_BLOCKS = H / 128, I_BLOCKS = I / 128;        // 128-wide blocks of k: of W13, of W2
constexpr int OUT_BLOCKS = H / 8;                            // 8-row blocks of W2
constexpr int OWN = (H_BLOCKS + CONSUMERS - 1) / CONSUMERS;  // 128-wide blocks of k of a unit that a warp takes
// One token, and every warp has as many blocks: they lie side by side, and their products need no test between them.
constexpr bool SIDE_BY_SIDE = MAX_M == 1 && H_BLOCKS % CONSUMERS == 0;
DEVICE int own_block(int warp, int o) { return SIDE_BY_SIDE ? warp * OWN + o : warp + o * CONSUMERS; }
DEVICE bool has_block(int block) { return SIDE_BY_SIDE || block < H_BLOCKS; }
constexpr int STAGE_WARPS = STAGE_EXPERTS * I_BLOCKS;        // warps that work on one stage of W2, each a block of k
constexpr int TEAMS = CONSUMERS / STAGE_WARPS;               // stages of W2 that are worked on at once
static_assert(TEAMS >= 1, "a stage has a warp for each block of k");
constexpr int OUT_ROWS = ROW_BLOCKS * 8;
// Where MAX_M is at most 4, the columns of every product are the tokens themselves, whatever an expert's own are:
// activations are loaded once, h has a row for each pair of (expert in the list, token), sums of phase 2 stay in registers.
// Else an expert's columns are its own list of tokens, 8 at a time, and h has a row for each route.
constexpr bool COLUMN_IS_TOKEN = MAX_M <= 4;
constexpr int STATE_HEADER = 256;                            // bytes of `state` before its buffers (state.cuh)
static_assert((COLUMN_IS_TOKEN && MAX_M > 1) == (GATHERERS != 0), "h is gathered where columns are several tokens");
static_assert(CONSUMERS % 4 == 0, "finish_column adds the warps' parts by quarters");
static_assert(H % 128 == 0 && I % 128 == 0 && MAX_M <= 64, "plan.py refuses the rest");

struct Arguments {
    const u8* x;      // [tokens, H], 16-bit floats, or e4m3 with
    const float* xs;  // its scales, one for 128 values
    const u8* w13;    // weights and scales lie as u4.cuh and fp8_block.cuh say
    const u8* s13;
    const u8* w2;
    const u8* s2;
    const void* ids;  // [tokens, TOP_K], contiguous, as are
    const void* weights;
    u16* out;   // [tokens, H], 16-bit floats
    u8* state;  // state.cuh
    u64 half;   // bytes of one of its two buffers
    int tokens;
    int x_stride, xs_token, xs_group, out_stride;  // in elements
};

// h of up to 8 tokens, one block of 128 k, as B fragments of 8 steps of 16.
struct Hidden {
    u32 b[8][2];
};

// What a lane copies of a unit of W13, if `bytes`: to `to` of the unit's room in shared memory. `piece`: which of the unit's
// barriers learns of it.
struct UnitCopy {
    u32 to, bytes;
    const u8* from;
    u32 expert, unit;  // bytes from one to the next
    int piece;
    DEVICE_MEMBER const u8* of(u32 which, u32 within) const { return from + (u64)which * expert + within * unit; }
};
