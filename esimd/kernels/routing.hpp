// Which experts a token goes to: read from a router's answer, or decided here from its logits.
#pragma once

#include <limits>

#include "common.hpp"

namespace xpu_moe {

// Expert ids of one token: -1 where k >= top_k or where the id is out of range.
ESIMD_INLINE simd<int, 16> load_ids(const void* topk_ids, int token, int top_k, int num_experts, bool wide) {
  const int* words = static_cast<const int*>(topk_ids) + (int64_t(token) * top_k << int(wide));
  simd<int, 16> ids = load_some<int, 16>(words, top_k, -1, 1 << int(wide));
  if (wide) {
    const simd<int, 16> high = load_some<int, 16>(words + 1, top_k, -1, 2);
    ids.merge(simd<int, 16>(-1), high != 0);
  }
  ids.merge(simd<int, 16>(-1), (ids < 0) | (ids >= num_experts));
  return ids;
}

// One id, the same way.
ESIMD_INLINE int load_id(const void* topk_ids, int index, int num_experts, bool wide) {
  const int* word = static_cast<const int*>(topk_ids) + (int64_t(index) << int(wide));
  const int id = load_one(word);
  if (wide && load_one(word + 1) != 0) return -1;
  return id >= 0 && id < num_experts ? id : -1;
}

struct Route {
  simd<float, 16> weights;  // 0 from top_k on
  simd<int, 16> ids;        // -1 from top_k on
};

template <int N>
ESIMD_INLINE simd_mask<N> is_nan(simd<float, N> value) {
  return (value.template bit_cast_view<uint32_t>() & 0x7FFFFFFFu) > 0x7F800000u;
}

// exp of a negative number only: neither end overflows, and small sigmoids keep their order
template <int N>
ESIMD_INLINE simd<float, N> sigmoid(simd<float, N> z) {
  const simd<float, N> small = esimd::exp(simd<float, N>(-esimd::abs(z)));
  simd<float, N> score = esimd::inv(simd<float, N>(1.0f + small));
  score.merge(simd<float, N>(score * small), z < 0.0f);
  return score;
}

// An order-preserving map of floats to int; -0 and 0 are equal. NaN counts as -inf.
template <int N>
ESIMD_INLINE simd<int, N> sort_key(simd<float, N> choice) {
  choice.merge(simd<float, N>(-std::numeric_limits<float>::infinity()), is_nan<N>(choice));
  choice.merge(simd<float, N>(0.0f), choice == 0.0f);
  simd<int, N> bits = choice.template bit_cast_view<int>();
  bits.merge(simd<int, N>(bits ^ 0x7FFFFFFF), bits < 0);
  return bits;
}

constexpr int KEY_TAKEN = std::numeric_limits<int>::min();  // below every expert
constexpr int KEY_NAN = KEY_TAKEN + 1;                      // below every usable expert, -inf included

template <int N>
ESIMD_INLINE int first_lane(simd_mask<N> mask) {
  return int(esimd::fbl(esimd::pack_mask(mask)));
}

// Top-k of sigmoid(logits) + bias; ties to the lowest id. Semantics: xpu_moe/ops/route_sigmoid_topk.py.
//
// A group of 8 threads routes up to TILE tokens. All threads turn logits into keys, 16 at a time, and leave them in SLM
// with the maximum of each block of 16 beside them; then one thread a token takes the best one top_k times, looking at
// 32 maxima and one block in each round.
//
//     SLM + base    keys [TILE][512]    maxima [TILE][32]
constexpr int ROUTE_THREADS = 8;
constexpr int ROUTE_BLOCKS = abi::MAX_EXPERTS / 16;
constexpr int route_slm(int tile) { return tile * (abi::MAX_EXPERTS + ROUTE_BLOCKS) * 4; }

// The keys of 16 experts from `base` on.
ESIMD_INLINE simd<int, 16> expert_keys(
    const void* logits, int64_t first, const void* bias, int base, int num_experts, int flags) {
  const simd<int, 16> lane(0, 1);
  const int count = num_experts - base;
  const simd<float, 16> z = load_floats<16>(logits, first + base, count, flags >> abi::LOGITS_SHIFT & 3, 0.0f);
  simd<float, 16> choice = sigmoid<16>(z);
  if (flags & abi::WITH_BIAS) choice += load_floats<16>(bias, base, count, flags >> abi::BIAS_SHIFT & 3, 0.0f);
  simd<int, 16> key = sort_key<16>(choice);
  key.merge(simd<int, 16>(KEY_NAN), is_nan<16>(z));
  key.merge(simd<int, 16>(KEY_TAKEN), lane >= count);
  return key;
}

// Keys and maxima of the tile's tokens into SLM; every thread of the group takes part. A barrier must follow.
template <int TILE>
ESIMD_INLINE void keys_to_slm(
    uint32_t slm, int thread, const void* logits, int stride, int first_token, int tokens, const void* bias,
    int num_experts, int flags) {
  const uint32_t maxima = slm + TILE * abi::MAX_EXPERTS * 4;
  for (int i = thread; i < TILE * ROUTE_BLOCKS; i += ROUTE_THREADS) {
    const int token = first_token + i / ROUTE_BLOCKS, base = i % ROUTE_BLOCKS * 16;
    int best = KEY_TAKEN;
    if (token < tokens && base < num_experts) {
      const simd<int, 16> keys = expert_keys(logits, int64_t(token) * stride, bias, base, num_experts, flags);
      esimd::slm_block_store<int, 16>(slm + i * 64, keys);
      best = esimd::hmax<int>(keys);
    }
    esimd::slm_block_store<int, 1>(maxima + i * 4, simd<int, 1>(best));
  }
}

// The route of token `m` of the tile, from its keys in SLM; one thread, after the barrier.
template <int TILE>
ESIMD_INLINE Route route_from_slm(
    uint32_t slm, int m, const void* logits, int64_t first, int top_k, int flags, float scale) {
  using namespace esimd;
  const simd<int, 16> lane(0, 1);
  const simd<int, ROUTE_BLOCKS> block_lane(0, 1);
  const uint32_t keys = slm + m * abi::MAX_EXPERTS * 4;
  simd<int, ROUTE_BLOCKS> best =
      slm_block_load<int, ROUTE_BLOCKS>(slm + (TILE * abi::MAX_EXPERTS + m * ROUTE_BLOCKS) * 4);
  Route out{0.0f, -1};
  for (int k = 0; k < top_k; ++k) {
    const int top = hmax<int>(best);
    const int block = first_lane<ROUTE_BLOCKS>(best == top);
    simd<int, 16> members = slm_block_load<int, 16>(keys + block * 64);
    const int member = first_lane<16>(members == top);
    out.ids.merge(simd<int, 16>(block * 16 + member), lane == k);
    members.merge(simd<int, 16>(KEY_TAKEN), lane == member);
    slm_block_store<int, 16>(keys + block * 64, members);
    best.merge(simd<int, ROUTE_BLOCKS>(hmax<int>(members)), block_lane == block);
  }
  const simd_mask<16> chosen = lane < top_k;
  const int logits_kind = flags >> abi::LOGITS_SHIFT & 3;
  simd<float, 16> z;
  if (logits_kind == 0) {
    z = gather<float, 16>(
        static_cast<const float*>(logits) + first, simd<uint32_t, 16>(out.ids * 4), chosen, simd<float, 16>(0.0f));
  } else {
    const simd<uint16_t, 16> bits = gather<uint16_t, 16>(
        static_cast<const uint16_t*>(logits) + first, simd<uint32_t, 16>(out.ids * 2), chosen, simd<uint16_t, 16>(0));
    z = logits_kind == 1 ? from_float16<16>(bits) : from_bfloat16<16>(bits);
  }
  out.weights = sigmoid<16>(z);
  out.weights.merge(simd<float, 16>(0.0f), is_nan<16>(z) | !chosen);
  if (flags & abi::RENORMALIZE) out.weights *= esimd::inv(reduce<float>(out.weights, std::plus<>()) + 1e-20f);
  out.weights *= scale;
  return out;
}

// Writes the first top_k entries to row `token` of weights and ids [M, top_k].
ESIMD_INLINE void store_route(const Route& r, int token, int top_k, float* weights, int* ids) {
  const simd<uint32_t, 16> lane(0, 1);
  const simd_mask<16> there = lane < uint32_t(top_k);
  esimd::scatter<float, 16>(weights + int64_t(token) * top_k, simd<uint32_t, 16>(lane * 4u), r.weights, there);
  esimd::scatter<int, 16>(ids + int64_t(token) * top_k, simd<uint32_t, 16>(lane * 4u), r.ids, there);
}

// The expert of one slot (token j of the tile, route k), and which tokens of the tile share it.
//
// Two tokens that pick one expert read its weights once: the slot that names the expert first leads, the others rest.
template <int TILE>
struct Sharers {
  int expert = -1;  // -1: this slot does nothing
  int route[TILE];  // per token the first of its routes that names the expert; -1 without one

  ESIMD_INLINE bool serves(int m) const { return TILE == 1 || route[m] >= 0; }
};

// From the ids of the tile's tokens, 16 each.
template <int TILE>
ESIMD_INLINE Sharers<TILE> sharers_of(simd<int, 16 * TILE>& ids, int slot, int top_k) {
  Sharers<TILE> s;
  int j = 0;
  if constexpr (TILE > 1) j = int(slot >= top_k) + int(slot >= 2 * top_k) + int(slot >= 3 * top_k);
  const int k = slot - j * top_k;
  const int e = ids[16 * j + k];
  bool leads = e >= 0;
#pragma unroll
  for (int m = 0; m < TILE; ++m) {
    const uint32_t match = esimd::pack_mask(simd_mask<16>(simd<int, 16>(ids.template select<16, 1>(16 * m)) == e));
    s.route[m] = match ? int(esimd::fbl(match)) : -1;
    if (m < j && match != 0) leads = false;
    if (m == j && s.route[m] != k) leads = false;
  }
  if (leads) s.expert = e;
  return s;
}

}  // namespace xpu_moe
