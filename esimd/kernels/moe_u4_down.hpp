// moe_u4_down: out[m, :] = sum over the routes of token m of weight * (w2[e] @ hidden[m, k]), written once.
//
//     group (-, tile, block): 4 rows of w2; its `split` threads share the slots (token, route) of the tile
//
//     w2[e]  row h     |====|====|====|     4 rows of an expert are adjacent: the thread reads one piece of memory
//            row h+1   |====|====|====|     in steps of STEP weights a row, each once
//            ...
//     hidden[m, k]     |====|====|====|     float32 in the order of the nibbles: no conversion, shared by the 4 rows
//
// Each thread keeps the sums of all its routes in registers; SLM adds up the threads in a fixed order. No atomics.
// Launch shape and instance: launch.down.
#pragma once

#include "nibbles.hpp"
#include "routing.hpp"

namespace xpu_moe {

constexpr int DOWN_ROWS = 4;
constexpr int DOWN_MAX_SPLIT = 8;

template <class T, int G, int STEP, int TILE>
ESIMD_INLINE void moe_u4_down(
    const float* hidden, const uint8_t* w2, const uint16_t* w2_scale, const void* topk_ids, const void* topk_weights,
    T* out, int tokens, int hidden_size, int intermediate_size, int num_experts, int top_k, int out_stride, int split,
    int flags) {
  using namespace esimd;
  slm_init<DOWN_MAX_SPLIT * TILE * DOWN_ROWS * 4>();
  const auto item = XPU_MOE_ITEM;
  const int tile = item.get_group(1), thread = item.get_local_id(2);
  const int h = item.get_group(2) * DOWN_ROWS;
  const int pitch = intermediate_size / 2, groups = intermediate_size / G;
  const uint32_t flip = nibble_flip(flags);
  const int weights_kind = flags >> abi::WEIGHTS_SHIFT & 3;

  simd<int, 16 * TILE> ids = -1;
  simd<float, 16 * TILE> weights = 0.0f;
  if constexpr (TILE > 1) {
#pragma unroll
    for (int m = 0; m < TILE; ++m) {
      const int token = tile * TILE + m;
      if (token >= tokens) continue;
      ids.template select<16, 1>(16 * m) = load_ids(topk_ids, token, top_k, num_experts, flags & abi::IDS_64);
      weights.template select<16, 1>(16 * m) =
          load_floats<16>(topk_weights, int64_t(token) * top_k, top_k, weights_kind, 0.0f);
    }
  }

  simd<float, 16> sum[TILE][DOWN_ROWS];
#pragma unroll
  for (int m = 0; m < TILE; ++m)
#pragma unroll
    for (int r = 0; r < DOWN_ROWS; ++r) sum[m][r] = 0.0f;

  for (int slot = thread; slot < TILE * top_k; slot += split) {
    Sharers<TILE> sharers;
    float factor[TILE];  // of each token for this expert: the sum of its routes that name it
    if constexpr (TILE == 1) {
      sharers.expert = load_id(topk_ids, slot, num_experts, flags & abi::IDS_64);
      sharers.route[0] = slot;
      factor[0] = load_float(topk_weights, slot, weights_kind) * NIBBLE_UNIT;
    } else {
      sharers = sharers_of<TILE>(ids, slot, top_k);
#pragma unroll
      for (int m = 0; m < TILE; ++m) {
        simd<float, 16> named = weights.template select<16, 1>(16 * m);
        named.merge(simd<float, 16>(0.0f), simd<int, 16>(ids.template select<16, 1>(16 * m)) != sharers.expert);
        factor[m] = reduce<float>(named, std::plus<>()) * NIBBLE_UNIT;
      }
    }
    if (sharers.expert < 0) continue;
    const int row = sharers.expert * hidden_size + h;
    const uint8_t* w = row_of(w2, row, pitch);
    const uint16_t* scale = w2_scale + row * groups;
    const float* rows_hidden = hidden + tile * TILE * top_k * intermediate_size;

    for (int step = 0; step < intermediate_size; step += STEP) {
      simd<float, STEP / 2> even[DOWN_ROWS], odd[DOWN_ROWS];  // decoded once for all tokens
#pragma unroll
      for (int r = 0; r < DOWN_ROWS; ++r)
        decode<STEP>(
            load_weights<uint32_t, STEP / 8>(reinterpret_cast<const uint32_t*>(w + r * pitch)), flip, even[r], odd[r]);
      const simd<float, DOWN_ROWS * STEP / G> scales = load_scales<T, DOWN_ROWS, STEP / G>(scale, groups, flags);
#pragma unroll
      for (int m = 0; m < TILE; ++m) {
        if (!sharers.serves(m)) continue;
        simd<float, STEP> values =
            load_block<float, STEP>(rows_hidden + (m * top_k + sharers.route[m]) * intermediate_size + step);
        const simd<float, DOWN_ROWS * STEP / G> by_route = scales * factor[m];
#pragma unroll
        for (int r = 0; r < DOWN_ROWS; ++r)
#pragma unroll
          for (int g = 0; g < STEP / G; ++g) {
            simd<float, 16> dot;
#pragma unroll
            for (int i = 0; i < G / 32; ++i) {
              const int at = g * (G / 32) + i;
              multiply_add(
                  i == 0, dot, block_of(even[r], at), values.template select<16, 1>(32 * at), block_of(odd[r], at),
                  values.template select<16, 1>(32 * at + 16));
            }
            sum[m][r] += dot * by_route[r * (STEP / G) + g];
          }
      }
      w += STEP / 2, scale += STEP / G;
    }
  }

#pragma unroll
  for (int m = 0; m < TILE; ++m) {
    simd<float, DOWN_ROWS> total;
#pragma unroll
    for (int r = 0; r < DOWN_ROWS; ++r) total[r] = reduce<float>(sum[m][r], std::plus<>());
    slm_block_store<float, DOWN_ROWS>((thread * TILE + m) * DOWN_ROWS * 4, total);
  }
  barrier();
  const int token = tile * TILE + thread;
  if (thread >= TILE || token >= tokens) return;
  simd<float, DOWN_ROWS> total = slm_block_load<float, DOWN_ROWS>(thread * DOWN_ROWS * 4);
  for (int p = 1; p < split; ++p)  // always in this order: the result does not depend on the schedule
    total += slm_block_load<float, DOWN_ROWS>((p * TILE + thread) * DOWN_ROWS * 4);
  simd<uint16_t, DOWN_ROWS> bits = to_bits<T, DOWN_ROWS>(total);
  block_store<uint32_t, DOWN_ROWS / 2>(
      reinterpret_cast<uint32_t*>(out + token * out_stride + h), bits.template bit_cast_view<uint32_t>(),
      properties{alignment<4>});
}

}  // namespace xpu_moe
