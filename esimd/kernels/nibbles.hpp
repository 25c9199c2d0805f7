// 4-bit weights -> float32, and the dot product of a step.
//
// 16 bytes hold 32 weights: byte j has weight 2j in its low nibble, 2j + 1 in its high one. Both nibbles are moved to the
// top of their byte, where a two's complement nibble n reads as the signed byte 16 n: no sign extension, one conversion.
//
//     byte        [ odd  | even ]
//     & 0xF0      [ odd  |  0   ]  = 16 * odd   (int8)
//     << 4 & 0xF0 [ even |  0   ]  = 16 * even  (int8)
//
// u4 becomes two's complement by ^ 0x88 (n - 8 and n ^ 8 are the same nibble). The factor 16 leaves with the last sum.
#pragma once

#include "common.hpp"

namespace xpu_moe {

constexpr float NIBBLE_UNIT = 0.0625f;

ESIMD_INLINE uint32_t nibble_flip(int flags) { return flags & abi::S4 ? 0u : 0x88888888u; }

// N weights of one row: 16 * the even ones, 16 * the odd ones.
template <int N>
ESIMD_INLINE void decode(
    simd<uint32_t, N / 8> packed, uint32_t flip, simd<float, N / 2>& even, simd<float, N / 2>& odd) {
  packed ^= flip;
  simd<uint32_t, N / 8> high = packed & 0xF0F0F0F0u;
  packed <<= 4;
  simd<uint32_t, N / 8> low = packed & 0xF0F0F0F0u;
#pragma unroll
  for (int b = 0; b < N / 2; b += 16) {
    const simd<int8_t, 16> l = low.template bit_cast_view<int8_t>().template select<16, 1>(b);
    const simd<int8_t, 16> h = high.template bit_cast_view<int8_t>().template select<16, 1>(b);
    even.template select<16, 1>(b) = esimd::convert<float>(l);
    odd.template select<16, 1>(b) = esimd::convert<float>(h);
  }
}

// The 16 even (or odd) weights of block b of 32.
template <int N>
ESIMD_INLINE simd<float, 16> block_of(simd<float, N>& weights, int b) {
  return weights.template select<16, 1>(16 * b);
}

// dot (+)= a * x + b * y; the first block of a scale group starts the sum.
ESIMD_INLINE void multiply_add(
    bool first, simd<float, 16>& dot, simd<float, 16> a, simd<float, 16> x, simd<float, 16> b, simd<float, 16> y) {
  if (first)
    dot = a * x;
  else
    dot += a * x;
  dot += b * y;
}

// COUNT adjacent scales of each of ROWS rows, `pitch` scales apart, as float32: row 0's, then row 1's, ...
template <class T, int ROWS, int COUNT>
ESIMD_INLINE simd<float, ROWS * COUNT> load_scales(const uint16_t* p, int pitch, int flags) {
  simd<uint32_t, ROWS * COUNT> at;
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    at.template select<COUNT, 1>(r * COUNT) = simd<uint32_t, COUNT>(uint32_t(r * pitch) * 2, 2);
  const simd<uint16_t, ROWS * COUNT> bits = esimd::gather<uint16_t, ROWS * COUNT>(p, at, SCALE_HINTS);
  if constexpr (std::is_same_v<T, bfloat16>)
    if (flags & abi::SCALE_BF16) return from_bfloat16<ROWS * COUNT>(bits);
  return from_float16<ROWS * COUNT>(bits);
}

}  // namespace xpu_moe
