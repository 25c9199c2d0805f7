// Sizes of one compiled variant, all known at compile time. The host (plan.py) chooses them.
//   H, I, E, TOP_K, GROUP   the layer;  MAX_M  the bucket of M;  BLOCKS  grid size (one block a multiprocessor)
//   GATED, RELU2            the activation;  HALF_X  x and out are fp16, else bf16;  SCALE  0 bf16, 1 fp16, 2 fp32
//   CONSUMERS   warps that compute;  ROW_BLOCKS  most 8-row blocks of W2 that one thread block owns
//   STAGE_EXPERTS, STAGE_BYTES, STAGES, DEPTH  the ring;  PARTIALS  buffers between the consumers and the finishers;
//   SHARED_ROOM  bytes of shared memory behind the ring
#pragma once
#include "ptx.cuh"

constexpr int FINISHERS = 3;
constexpr int PRODUCER = CONSUMERS, FINISHER = CONSUMERS + 1;  // warp numbers
constexpr int CONSUMER_THREADS = CONSUMERS * 32;
constexpr int THREADS = CONSUMER_THREADS + 32 + FINISHERS * 32;
constexpr int UNITS = GATED ? I / 8 : I / 16;  // units of W13 an expert: 8 gate rows and 8 up rows, or 16 rows
constexpr int H_BLOCKS = H / 128, I_BLOCKS = I / 128;
constexpr int OUT_BLOCKS = H / 8;                            // 8-row blocks of W2
constexpr int OWN = (H_BLOCKS + CONSUMERS - 1) / CONSUMERS;  // 128-wide blocks of k of a unit that a warp takes
constexpr int STAGE_WARPS = STAGE_EXPERTS * I_BLOCKS;        // warps that work on one stage of W2, each a block of k
constexpr int TEAMS = CONSUMERS / STAGE_WARPS;               // stages of W2 that are worked on at once
constexpr int OUT_ROWS = ROW_BLOCKS * 8;
static_assert(TEAMS >= 1, "a stage has a warp for each block of k");
static_assert(CONSUMERS % 4 == 0, "finish_column adds the warps' parts by quarters");
static_assert(H % 128 == 0 && I % 128 == 0 && E <= THREADS && MAX_M <= 64, "supports() refuses the rest");

struct Arguments {
    const u8* x;        // bf16/fp16 [M, H], or e4m3
    const float* xs;    // scales of x (FP8 only)
    const u8* w13;
    const u8* s13;
    const u8* w2;
    const u8* s2;
    const void* ids;
    const void* weights;
    u16* out;
    u8* state;          // see kernel.cuh
    u64 half;           // bytes of one of its two buffers
    int tokens, x_stride, xs_token, xs_group, out_stride;
};

// h of up to 8 tokens, one block of 128 k, as B fragments.
struct Hidden {
    u32 b[8][2];
};
