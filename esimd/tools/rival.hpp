// What the WS ("work sharing") ESIMD kernels of intel/llm-scaler do per weight, written anew from the description of
// their design (no line is theirs): one hardware thread a tile of rows, no SLM; 64 bytes = 128 weights = one scale
// group a message; the zero point and the scale applied to every element; scales as scalar loads; fp16 hidden vector.
// For the estimate of issue slots that the report prints beside ours; never shipped, never run.
#pragma once

#include "common.hpp"

namespace xpu_moe::rival {

// One group of 128 weights against even and odd x: (nibble - 8) * scale * x, element by element.
ESIMD_INLINE void add_group(
    simd<float, 64>& sum, const uint8_t* w, const half* scale, simd<float, 64> x_even, simd<float, 64> x_odd) {
  const simd<uint8_t, 64> bytes = load_weights<uint8_t, 64>(w);
  const float s = load_one(scale);
  const simd<uint8_t, 64> low = bytes & uint8_t(15), high = bytes >> uint8_t(4);
  const simd<float, 64> even = (esimd::convert<float>(low) - 8.0f) * s;
  const simd<float, 64> odd = (esimd::convert<float>(high) - 8.0f) * s;
  sum += even * x_even;
  sum += odd * x_odd;
}

ESIMD_INLINE void load_x(const half* x, simd<float, 64>& even, simd<float, 64>& odd) {
  simd<half, 128> values = load_block<half, 128>(x);
  even = esimd::convert<float>(simd<half, 64>(values.template select<64, 2>(0)));
  odd = esimd::convert<float>(simd<half, 64>(values.template select<64, 2>(1)));
}

constexpr int UP_COLUMNS = 2;  // N_TILE at M <= 2
constexpr int DOWN_ROWS = 4;   // H_TILE at M <= 2

ESIMD_INLINE void up(
    const half* x, const uint8_t* w13, const half* scale, const int* ids, half* hidden, int hidden_size, int inter) {
  const auto item = XPU_MOE_ITEM;
  const int slot = item.get_group(1), column = item.get_group(2) * UP_COLUMNS;
  const int expert = load_one(ids + slot);
  const int pitch = hidden_size / 2, groups = hidden_size / 128, first = expert * 2 * inter + column;
  simd<float, 64> sum[2 * UP_COLUMNS];
#pragma unroll
  for (int r = 0; r < 2 * UP_COLUMNS; ++r) sum[r] = 0.0f;
  for (int g = 0; g < groups; ++g) {
    simd<float, 64> even, odd;
    load_x(x + g * 128, even, odd);
#pragma unroll
    for (int r = 0; r < 2 * UP_COLUMNS; ++r) {
      const int row = first + (r & 1) * inter + (r >> 1);
      add_group(sum[r], row_of(w13, row, pitch) + g * 64, scale + row * groups + g, even, odd);
    }
  }
#pragma unroll
  for (int c = 0; c < UP_COLUMNS; ++c) {
    const float gate = esimd::reduce<float>(sum[2 * c], std::plus<>());
    const float value = esimd::reduce<float>(sum[2 * c + 1], std::plus<>());
    store_one(hidden + slot * inter + column + c, half(gate * esimd::inv(1.0f + esimd::exp(-gate)) * value));
  }
}

ESIMD_INLINE void down(
    const half* hidden, const uint8_t* w2, const half* scale, const int* ids, const half* weights, half* out,
    int hidden_size, int inter, int top_k) {
  const auto item = XPU_MOE_ITEM;
  const int first = item.get_group(2) * DOWN_ROWS, pitch = inter / 2, groups = inter / 128;
  simd<float, DOWN_ROWS> total = 0.0f;
  for (int k = 0; k < top_k; ++k) {
    const int expert = load_one(ids + k);
    const float weight = load_one(weights + k);
    simd<float, 64> sum[DOWN_ROWS];
#pragma unroll
    for (int r = 0; r < DOWN_ROWS; ++r) sum[r] = 0.0f;
    for (int g = 0; g < groups; ++g) {
      simd<float, 64> even, odd;
      load_x(hidden + k * inter + g * 128, even, odd);
#pragma unroll
      for (int r = 0; r < DOWN_ROWS; ++r) {
        const int row = expert * hidden_size + first + r;
        add_group(sum[r], row_of(w2, row, pitch) + g * 64, scale + row * groups + g, even, odd);
      }
    }
#pragma unroll
    for (int r = 0; r < DOWN_ROWS; ++r) total[r] += weight * esimd::reduce<float>(sum[r], std::plus<>());
  }
#pragma unroll
  for (int r = 0; r < DOWN_ROWS; ++r) store_one(out + first + r, half(float(total[r])));
}

}  // namespace xpu_moe::rival
