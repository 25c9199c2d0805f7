// moe_u4_up: hidden[m, k, :] = act(gate @ x[m]) * (up @ x[m]) for the experts of each token, float32.
//
//     group (tile, slot, block): 8 hardware threads = 8 / split pairs of rows, `split` threads along K for each
//
//     w13[e]   gate row i  |====|====|====|====|   a thread reads its part of both rows in steps of STEP weights
//              up   row i  |====|====|====|====|   (STEP / 2 bytes, one block message), once
//     x[m]                 |====|====|====|====|   from L1: every thread of the Xe core reads the same row
//
// An expert that several tokens of the tile picked is read by the slot that names it first, which serves them all.
// Without gate (flags), the pair is rows 2i and 2i + 1. Launch shape and instance: launch.up.
#pragma once

#include "activations.hpp"
#include "nibbles.hpp"
#include "routing.hpp"

namespace xpu_moe {

constexpr int UP_LOCAL = 8;
constexpr int UP_SLM_PARTS = 256;                          // behind the ids of 4 tokens
constexpr int UP_SLM_ROUTE = UP_SLM_PARTS + UP_LOCAL * 8 * 4;  // behind the partial sums

// The ids of a tile's tokens, 16 each: read, or decided from logits by the group and shared through SLM.
template <int TILE>
ESIMD_INLINE simd<int, 16 * TILE> tile_ids(
    const void* topk_ids, const void* logits, const void* bias, float* route_weights, int* route_ids, int tile,
    int thread, bool writes, int tokens, int num_experts, int top_k, int flags, float route_scale) {
  simd<int, 16 * TILE> ids = -1;
  if (!(flags & abi::WITH_LOGITS)) {
#pragma unroll
    for (int m = 0; m < TILE; ++m)
      if (tile * TILE + m < tokens)
        ids.template select<16, 1>(16 * m) =
            load_ids(topk_ids, tile * TILE + m, top_k, num_experts, flags & abi::IDS_64);
    return ids;
  }
  keys_to_slm<TILE>(UP_SLM_ROUTE, thread, logits, num_experts, tile * TILE, tokens, bias, num_experts, flags);
  esimd::barrier();
  const int token = tile * TILE + thread;
  if (thread < TILE) {
    simd<int, 16> own = -1;
    if (token < tokens) {
      const Route r = route_from_slm<TILE>(
          UP_SLM_ROUTE, thread, logits, int64_t(token) * num_experts, top_k, flags, route_scale);
      own = r.ids;
      if (writes) store_route(r, token, top_k, route_weights, route_ids);
    }
    esimd::slm_block_store<int, 16>(thread * 64, own);
  }
  esimd::barrier();
#pragma unroll
  for (int m = 0; m < TILE; ++m) ids.template select<16, 1>(16 * m) = esimd::slm_block_load<int, 16>(m * 64);
  return ids;
}

template <class T, int G, int STEP, int TILE>
ESIMD_INLINE void moe_u4_up(
    const T* x, const uint8_t* w13, const uint16_t* w13_scale, const void* topk_ids, const void* logits,
    const void* bias, float* hidden, float* route_weights, int* route_ids, int tokens, int hidden_size,
    int intermediate_size, int num_experts, int top_k, int x_stride, int split, int flags, float route_scale) {
  using namespace esimd;
  slm_init<UP_SLM_ROUTE + route_slm(TILE)>();
  const auto item = XPU_MOE_ITEM;
  const int tile = item.get_group(0), slot = item.get_group(1), block = item.get_group(2);
  const int thread = item.get_local_id(2);

  Sharers<TILE> sharers;
  if (TILE == 1 && !(flags & abi::WITH_LOGITS)) {  // nothing to share, nothing to decide: one id
    sharers.expert = load_id(topk_ids, slot, num_experts, flags & abi::IDS_64);
    sharers.route[0] = slot;
  } else {
    simd<int, 16 * TILE> ids = tile_ids<TILE>(
        topk_ids, logits, bias, route_weights, route_ids, tile, thread, slot == 0 && block == 0, tokens, num_experts,
        top_k, flags, route_scale);
    sharers = sharers_of<TILE>(ids, slot, top_k);
  }
  if (sharers.expert < 0) return;  // the whole group: no thread waits for another

  const int shift = (split >> 1) - (split >> 3);  // log2 of 1, 2, 4, 8
  const int part = thread & (split - 1), pair = block * (UP_LOCAL >> shift) + (thread >> shift);
  const bool gated = flags & abi::GATED;
  const int rows = gated ? 2 * intermediate_size : intermediate_size;
  const int row = sharers.expert * rows + (gated ? pair : 2 * pair);
  const int apart = gated ? intermediate_size : 1;  // rows between the two of a pair

  const int steps = hidden_size / STEP, first = steps * part >> shift, last = steps * (part + 1) >> shift;
  const int pitch = hidden_size / 2, groups = hidden_size / G;
  const uint8_t* w = row_of(w13, row, pitch) + first * (STEP / 2);
  const uint8_t* v = row_of(w, apart, pitch);
  const uint16_t* scale = w13_scale + (row * groups + first * (STEP / G));
  const T* rows_x = x + (tile * TILE * x_stride + first * STEP);
  const uint32_t flip = nibble_flip(flags);

  simd<float, 16> sum[TILE][2];
#pragma unroll
  for (int m = 0; m < TILE; ++m) sum[m][0] = sum[m][1] = 0.0f;

  for (int step = first; step < last; ++step) {
    simd<float, STEP / 2> even[2], odd[2];  // of both rows, decoded once for all tokens
    decode<STEP>(load_weights<uint32_t, STEP / 8>(reinterpret_cast<const uint32_t*>(w)), flip, even[0], odd[0]);
    decode<STEP>(load_weights<uint32_t, STEP / 8>(reinterpret_cast<const uint32_t*>(v)), flip, even[1], odd[1]);
    const simd<float, 2 * STEP / G> scales = load_scales<T, 2, STEP / G>(scale, apart * groups, flags);
#pragma unroll
    for (int m = 0; m < TILE; ++m) {
      if (!sharers.serves(m)) continue;
      simd<T, STEP> values = load_block<T, STEP>(rows_x + m * x_stride);
#pragma unroll
      for (int g = 0; g < STEP / G; ++g) {
        simd<float, 16> dot[2];
#pragma unroll
        for (int i = 0; i < G / 32; ++i) {
          const int at = g * (G / 32) + i;
          const Pairs<T> xs(values.template select<32, 1>(at * 32));
#pragma unroll
          for (int r = 0; r < 2; ++r) multiply_add(i == 0, dot[r], block_of(even[r], at), xs.even, block_of(odd[r], at), xs.odd);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) sum[m][r] += dot[r] * scales[r * (STEP / G) + g];
      }
    }
    w += STEP / 2, v += STEP / 2, scale += STEP / G, rows_x += STEP;
  }

  simd<float, 2 * TILE> total;  // token m: a at m, b at TILE + m
#pragma unroll
  for (int m = 0; m < TILE; ++m) {
    total[m] = reduce<float>(sum[m][0], std::plus<>());
    total[TILE + m] = reduce<float>(sum[m][1], std::plus<>());
  }
  if (split > 1) {
    slm_block_store<float, 2 * TILE>(UP_SLM_PARTS + thread * 8 * TILE, total);
    barrier();
    if (part != 0) return;
    for (int p = 1; p < split; ++p)  // always in this order: the result does not depend on the schedule
      total += slm_block_load<float, 2 * TILE>(UP_SLM_PARTS + (thread + p) * 8 * TILE);
  }
  total *= NIBBLE_UNIT;

  const simd<float, TILE> va = total.template select<TILE, 1>(0), vb = total.template select<TILE, 1>(TILE);
  const simd<float, TILE> act_a = activate<TILE>(va, flags);
  const simd<float, TILE> out_a = gated ? simd<float, TILE>(act_a * vb) : act_a;
  const simd<float, TILE> out_b = activate<TILE>(vb, flags);
  const int column = gated ? pair : 2 * pair;
  const int position = (column & ~31) | (column & 1) << 4 | (column & 31) >> 1;  // launch.hidden_position
#pragma unroll
  for (int m = 0; m < TILE; ++m) {
    if (!sharers.serves(m)) continue;
    const int at = ((tile * TILE + m) * top_k + sharers.route[m]) * intermediate_size + position;
    store_one(hidden + at, float(out_a[m]));
    if (!gated) store_one(hidden + at + 16, float(out_b[m]));  // column + 1, an odd one
  }
}

}  // namespace xpu_moe
