// The tensor cores' products, on all lanes of a warp at once. Sums are made in fp32 in the order of k: the hardware's own order
// and its rounding inside a product are not modelled.
#include "machine.hpp"
#include "numbers.hpp"

namespace machine {
namespace {

// PACKED values a word. A word of lane 4g + t is of row g (A: words 0 and 2) or g + 8 (1 and 3), or of column g (B); k is
// t * PACKED, in words 2 and 3 of A and 1 of B 4 * PACKED more.
template <int PACKED, class Sum, class Value>
void multiply(const Words& in, Words& out, Value value) {
    constexpr int DEPTH = 8 * PACKED;
    Sum a[16][DEPTH], b[8][DEPTH];
    for (int lane = 0; lane < 32; ++lane)
        for (int word = 0; word < 6; ++word)
            for (int i = 0; i < PACKED; ++i) {
                const int g = lane / 4, k = lane % 4 * PACKED + i;
                const Sum v = value(in[lane][word], i, word >= 4);
                if (word < 4) a[g + word % 2 * 8][k + word / 2 * 4 * PACKED] = v;
                else b[g][k + (word - 4) * 4 * PACKED] = v;
            }
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
            const Sum *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
            Sum sum;
            __builtin_memcpy(&sum, &in[lane][6 + i], 4);
            for (int k = 0; k < DEPTH; ++k) sum += row[k] * column[k];
            __builtin_memcpy(&out[lane][i], &sum, 4);
        }
}

}  // namespace

void mma_bf16(const Words& in, Words& out) {
    multiply<2, float>(in, out, [](u32 v, int i, bool) { return numbers::float_of_bf16((uint16_t)(v >> (16 * i))); });
}
void mma_half(const Words& in, Words& out) {
    multiply<2, float>(in, out, [](u32 v, int i, bool) { return numbers::float_of_half((uint16_t)(v >> (16 * i))); });
}
void mma_u8s8(const Words& in, Words& out) {
    multiply<4, int>(in, out, [](u32 v, int i, bool b) {
        const uint8_t byte = (uint8_t)(v >> (8 * i));
        return b ? (int)(int8_t)byte : (int)byte;
    });
}

}  // namespace machine
