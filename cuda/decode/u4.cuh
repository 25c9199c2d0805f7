// 4-bit weights in the order "sm90_mma" (layout.py): 512 bytes hold 8 rows x 128 k; lane 4g + t owns 16 bytes = row g,
// word j = the 8 values k = 32j + 8t .. + 7, of which nibble i and nibble 4 + i are the pair (2i, 2i + 1).
#pragma once
#include "shape.cuh"

constexpr int SCALE_BYTES = SCALE == 2 ? 4 : 2;
constexpr int GROUPS = 128 / GROUP;   // scale groups in a 128-wide block
constexpr int STEPS = GROUP / 16;     // 16-bit mma steps in a scale group
constexpr int WORDS = GROUP / 32;     // words of a lane in a scale group, each a step of 32 k
constexpr u32 UNIT_BYTES = 8 * H;
constexpr u32 ROW_BLOCK_BYTES = 4 * I;  // 8 rows of W2
constexpr bool SCALES_IN_RING = true;   // they follow the weights in the stage
constexpr u32 UNIT_SCALES = 16 * (H / GROUP) * SCALE_BYTES, ROW_BLOCK_SCALES = 8 * (I / GROUP) * SCALE_BYTES;

// Phase 2 of lists (of few tokens: u4_few.cuh): h has the dtype of x. A nibble pair is placed into the mantissas of two bf16
// 128.0 (fp16 1024.0); that constant and the zero point 8 leave by rows of -136 (-1032) in the same product.
constexpr bool HALF_H = HALF_X;
constexpr u32 PLACE = HALF_H ? 0x64006400u : 0x43004300u, ZERO_POINT = HALF_H ? 0xE408E408u : 0xC308C308u;
DEVICE u32 pair_of(u32 word, int i, u32 place) { return and_or<0x000F000Fu>(word >> (4 * i), place); }
DEVICE u32 word_of(const uint4& v, int j) { return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w; }

DEVICE float scale_at(u32 address) {
    if (SCALE == 2) return load_shared_scale(address);
    const u16 v = load_shared_scale16(address);
    return SCALE == 1 ? float_of_half(v) : float_of_bf16(v);
}

// Phase 1: activations of up to 8 tokens as B fragments of two 8-bit products: within a token's block of 128 values
// x = step * (256 high + low), step = largest |x| / LEVELS. The rounding is 2^-16 of that largest value; a bf16 result
// shows 2^-9 of itself. Why: 4-bit weights are 8-bit operands after one mask (and a shift for the upper nibbles), where
// placing them into 16-bit floats takes more than twice the instructions of the unit that phase 1 would wait for.
// A block with an infinity or a NaN makes its token's sums NaN, and one whose values are all below TINY counts as 0.
// PAIRED (up to 4 tokens): the 8 columns of one product are the high and the low bytes of the tokens, side by side.
constexpr bool PAIRED = COLUMN_IS_TOKEN;
constexpr int HALVES = PAIRED ? 1 : 2;  // products for a tile, and tokens of a lane's sums
struct Columns {
    u32 byte[HALVES][OWN][4][2];      // [high, low] where not PAIRED
    float step[OWN][HALVES];          // of tokens 2t and 2t + 1 (PAIRED: t)
    float zero[OWN][GROUPS][HALVES];  // what the zero point 8 adds to a group's sum: 8 times the sum of x
};
// A lane's sums of a unit: rows g (gate), then rows g + 8 (up), HALVES columns each.
constexpr int SUMS = 2 * HALVES;
DEVICE int column_of(int g) { return PAIRED ? g >> 1 : g; }
constexpr float LEVELS = 32512.f;  // 127 * 256: the range of 256 high + low with signed bytes
constexpr float TINY = 1e-30f;
// The last bit of the float 3 * 2^22 counts ones: COUNT_BITS + n are the bits of COUNT_ZERO + n.
constexpr int COUNT_BITS = 0x4B400000;
constexpr float COUNT_ZERO = 12582912.f;
constexpr u32 LOWER = 0x0F0F0F0Fu, UPPER = 0xF0F0F0F0u;  // the nibbles of a word
DEVICE float counted(int c) { return __int_as_float(c) - COUNT_ZERO; }

DEVICE float widen(u32 pair, int half) {
    if (HALF_X) return float_of_half((u16)(pair >> (16 * half)));
    return __uint_as_float(half ? pair & 0xFFFF0000u : pair << 16);
}

// Two pairs of values -> their high or their low bytes, in the order first.0, second.0, first.1, second.1.
struct Byte {
    float bias;  // the high byte is of a sum that rounds up by 128, because the low one is signed
    u32 order;   // which byte of two values
    DEVICE_MEMBER explicit Byte(bool low) : bias(low ? COUNT_ZERO : COUNT_ZERO + 128.f), order(low ? 0x40 : 0x51) {}
    DEVICE_MEMBER u32 of(u32 first, u32 second, float scale) const {
        u32 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = __float_as_uint(fmaf(widen(i & 1 ? second : first, i >> 1), scale, bias));
        return permute(permute(v[0], v[1], order), permute(v[2], v[3], order), 0x5410);
    }
};

// Both bytes of two pairs, likewise: the low one of a sum that was raised by 128 is off by its sign bit.
DEVICE void split_bytes(u32& high, u32& low, u32 first, u32 second, float scale) {
    u32 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __float_as_uint(fmaf(widen(i & 1 ? second : first, i >> 1), scale, COUNT_ZERO + 128.f));
    const u32 a = permute(v[0], v[1], 0x5410), b = permute(v[2], v[3], 0x5410);
    high = permute(a, b, 0x7531), low = permute(a, b, 0x6420) ^ 0x80808080u;
}

// What the zero point adds to the groups of block `o`, from its bytes and steps.
DEVICE void sum_zero(Columns& f, int o) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        constexpr u32 ONES = 0x01010101u;
        int sum[HALVES][4] = {};
#pragma unroll
        for (int j = group * WORDS; j < (group + 1) * WORDS; ++j)
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
                mma_u8s8(sum[half], ONES, ONES, ONES, ONES, f.byte[half][o][j][0], f.byte[half][o][j][1]);
#pragma unroll
        for (int c = 0; c < HALVES; ++c)
            f.zero[o][group][c] = 8.f * f.step[o][c] * (float)(256 * sum[0][c] + (PAIRED ? sum[0][1] : sum[HALVES - 1][c]));
    }
}

// `token` is this lane's column; one that is not live is 0.
DEVICE void load_columns(Columns& f, const Arguments& p, int token, bool live, int warp, int lane) {
    const int t = lane & 3;
    const u16* row = (const u16*)p.x + (live ? (u64)token * p.x_stride : 0);
    uint4 x[OWN][4];
#pragma unroll
    for (int o = 0; o < OWN; ++o)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int block = own_block(warp, o);
            x[o][j] = make_uint4(0, 0, 0, 0);
            if (live && has_block(block)) x[o][j] = load_global(row + block * 128 + j * 32 + t * 8);
        }
#pragma unroll
    for (int o = 0; o < OWN; ++o) {
        // Without their signs, 16-bit floats are ordered as integers are, NaN last.
        u32 most = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) most = greater_halves(most, word_of(x[o][j], i) & 0x7FFF7FFFu);
        most = greater_halves(most, most >> 16);
        most = greater_halves(most, __shfl_xor_sync(~0u, most, 1));
        most = greater_halves(most, __shfl_xor_sync(~0u, most, 2));
        const float largest = widen(most, 0);
        const float step = largest < TINY ? 0.f : largest * (1.f / LEVELS), scale = largest < TINY ? 0.f : LEVELS / largest;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                const Byte byte(PAIRED ? lane & 4 : half == 1);
                f.byte[half][o][j][0] = byte.of(x[o][j].x, x[o][j].z, scale);
                f.byte[half][o][j][1] = byte.of(x[o][j].y, x[o][j].w, scale);
            }
        }
#pragma unroll
        for (int c = 0; c < HALVES; ++c) f.step[o][c] = __shfl_sync(~0u, step, (PAIRED ? 2 * t : 2 * t + c) * 4);
        sum_zero(f, o);
    }
}

DEVICE void load_column_scales(Columns&, const Arguments&, int, int, int, int) {}  // x has none
DEVICE void ask_weight_scales(Columns&, const Arguments&, int, int, int) {}        // they are in the ring
DEVICE void take_weight_scales(Columns&) {}

// Block `o` of those that this warp takes of a token.
DEVICE void prefetch_columns(const Arguments& p, int token, int warp, int o) {
    if (o >= OWN || !has_block(own_block(warp, o))) return;
    const u16* row = (const u16*)p.x + (u64)token * p.x_stride + own_block(warp, o) * 128;
    prefetch_l1(row), prefetch_l1(row + 64);
}

// Few tokens: upper nibbles are multiplied where they are, as 16 times their value, and summed apart. That saves the shifts.
constexpr bool IN_PLACE = PAIRED && WORDS % 2 == 0;
constexpr float COUNTS = IN_PLACE ? 1.f / 16 : 1.f;  // what 1 of a group's sum is
static_assert(16 * 15 * 128 * GROUP < 1 << 22, "a sum stays in the digits of COUNT_ZERO");

// A group's sums, as bits of COUNT_ZERO and the sum.
DEVICE void group_product(int (&sum)[HALVES][4], const uint4& gate, const uint4& up, const Columns& f, int o, int group) {
#pragma unroll
    for (int i = 0; i < 4 * HALVES; ++i) sum[i / 4][i % 4] = COUNT_BITS;
    if (IN_PLACE) {
        int lower[4] = {};
#pragma unroll
        for (int j = group * WORDS; j < (group + 1) * WORDS; j += 2) {
            const u32 a = word_of(gate, j), b = word_of(up, j), c = word_of(gate, j + 1), d = word_of(up, j + 1);
            const u32(&byte)[2] = f.byte[0][o][j], (&next)[2] = f.byte[0][o][j + 1];
            mma_u8s8(lower, a & LOWER, b & LOWER, c & LOWER, d & LOWER, byte[0], next[0]);
            mma_u8s8(sum[0], a & UPPER, b & UPPER, c & UPPER, d & UPPER, byte[1], next[1]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[0][i] += 16 * lower[i];
    } else {
#pragma unroll
        for (int j = group * WORDS; j < (group + 1) * WORDS; ++j) {
            const u32 a = word_of(gate, j), b = word_of(up, j);
            const u32 a0 = a & LOWER, a1 = b & LOWER, a2 = a >> 4 & LOWER, a3 = b >> 4 & LOWER;
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
                mma_u8s8(sum[half], a0, a1, a2, a3, f.byte[half][o][j][0], f.byte[half][o][j][1]);
        }
    }
}

// This warp's share of one unit: acc[0..HALVES) rows g (gate), then rows g + 8 (up), for the tokens of this lane's columns.
DEVICE void unit_product(float (&acc)[SUMS], u32 stage, const Columns& f, int warp, int lane) {
    const int g = lane >> 2;
#pragma unroll
    for (int o = 0; o < OWN; ++o) {
        const int block = own_block(warp, o);
        if (!has_block(block)) break;
        const uint4 gate = load_shared(stage + block * 1024 + lane * 16);
        const uint4 up = load_shared(stage + block * 1024 + 512 + lane * 16);
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            int sum[HALVES][4];
            group_product(sum, gate, up, f, o, group);
            const u32 scales = stage + UNIT_BYTES + ((block * GROUPS + group) * 16 + g * 2) * SCALE_BYTES;
            const float scale[2] = {scale_at(scales), scale_at(scales + SCALE_BYTES)};
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                const int row = i / HALVES, c = i % HALVES;
                const int high = PAIRED ? sum[0][2 * row] : sum[0][i & 3];
                const int low = PAIRED ? sum[0][2 * row + 1] : sum[HALVES - 1][i & 3];
                const float value = fmaf(counted(high), 256.f, counted(low));
                acc[i] = fmaf(scale[row], fmaf(value, f.step[o][c] * COUNTS, -f.zero[o][group][c]), acc[i]);
            }
        }
    }
}

// Where the values of 8 rows of h lie: in order. A row's partner in a pair is so many further on; word i begins with
// hidden_leader(i).
constexpr int HIDDEN_PARTNER = 1;
DEVICE constexpr int hidden_leader(int word) { return 2 * word; }

// Where the j-th vector of 8 values of a lane's share of a block of h begins.
DEVICE int hidden_offset(int j, int t) { return j * 32 + t * 8; }

// The warp's weights of a slot as A fragments. The row blocks fill the halves of the tiles one after the other; the half
// behind the last one holds the zero point, so its product costs nothing.
constexpr int TILES = (ROW_BLOCKS + 2) / 2;
struct Slot {
    u32 a[TILES][8][4];
    u32 scales;  // their address in shared memory
};

DEVICE void load_slot(Slot& f, u32 stage, int slot, int block, int lane) {
    const u32 place = kept(PLACE), weights = stage + slot * (ROW_BLOCKS * ROW_BLOCK_BYTES) + block * 512 + lane * 16;
    f.scales = stage + STAGE_EXPERTS * ROW_BLOCKS * ROW_BLOCK_BYTES + slot * (ROW_BLOCKS * ROW_BLOCK_SCALES) +
               (block * GROUPS * 8 + (lane >> 2)) * SCALE_BYTES;
    uint4 w[ROW_BLOCKS];
#pragma unroll
    for (int r = 0; r < ROW_BLOCKS; ++r) w[r] = load_shared(weights + r * ROW_BLOCK_BYTES);
#pragma unroll
    for (int row = 0; row < 2 * TILES; ++row)
#pragma unroll
        for (int s = 0; s < 8; ++s)
#pragma unroll
            for (int k = 0; k < 2; ++k)
                f.a[row / 2][s][row % 2 + 2 * k] =
                    row < ROW_BLOCKS ? pair_of(word_of(w[row < ROW_BLOCKS ? row : 0], s >> 1), (s & 1) * 2 + k, place)
                                     : ZERO_POINT;
}

// acc[r][0..1]: row g of row block r, columns 2t and 2t + 1.
DEVICE void slot_product(float (&acc)[ROW_BLOCKS][2], const Slot& f, const float*, const Hidden& h) {
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        float c[TILES][4] = {};
#pragma unroll
        for (int step = group * STEPS; step < (group + 1) * STEPS; ++step)
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
                (HALF_H ? mma_half : mma_bf16)(c[tile], f.a[tile][step][0], f.a[tile][step][1], f.a[tile][step][2],
                                               f.a[tile][step][3], h.b[step][0], h.b[step][1]);
        // What the tile's constant rows gave: minus the constant and the zero point, times the sum of h.
        const float z0 = c[ROW_BLOCKS / 2][(ROW_BLOCKS & 1) * 2], z1 = c[ROW_BLOCKS / 2][(ROW_BLOCKS & 1) * 2 + 1];
#pragma unroll
        for (int r = 0; r < ROW_BLOCKS; ++r) {
            const float scale = scale_at(f.scales + r * ROW_BLOCK_SCALES + group * 8 * SCALE_BYTES);
            acc[r][0] += scale * (c[r / 2][(r & 1) * 2] + z0), acc[r][1] += scale * (c[r / 2][(r & 1) * 2 + 1] + z1);
        }
    }
}
