// MiniMax's router for one token by one sub-group; semantics in xpu_moe/ops/route_sigmoid_topk.py.
//
// Selection takes top_k rounds of "the best that comes after the last one" in the total order
//   (usable first, larger choice first, lower id first),
// so that no array of the logits is kept and nothing is marked as taken.
#pragma once

#include "twin.hpp"

namespace twin {

constexpr float kInfinity = __builtin_huge_valf();

struct Route {
  float weight;
  int32_t id;
};

struct Candidate {
  int usable;    // 0 for a NaN
  float choice;  // sigmoid + bias, -inf where not usable
  int id;
};

inline bool before(const Candidate& a, const Candidate& b) {
  if (a.usable != b.usable) return a.usable > b.usable;
  if (a.choice != b.choice) return a.choice > b.choice;
  return a.id < b.id;
}

inline bool is_nan(float value) { return (float_to_bits(value) & 0x7fffffffu) > 0x7f800000u; }

inline float sigmoid(float value) { return 1.0f / (1.0f + sycl::exp(-value)); }

inline Candidate candidate(const void* logits, const void* bias, int64_t row, int id, int flags) {
  float logit = load_kind(static_cast<const char*>(logits) + row, id, flags >> abi::LOGITS_SHIFT & 3);
  bool usable = !is_nan(logit);
  float choice = usable ? sigmoid(logit) : 0.0f;
  if (flags & abi::WITH_BIAS) choice += load_kind(bias, id, flags >> abi::BIAS_SHIFT & 3);
  if (!usable || is_nan(choice)) choice = -kInfinity;
  return {usable, choice, id};
}

inline void route_token(const void* logits, const void* bias, int token, int num_experts, int top_k, int logits_stride,
                        int flags, float route_scale, sycl::sub_group lanes, Route* chosen) {
  const int kind = flags >> abi::LOGITS_SHIFT & 3;
  const int64_t row = static_cast<int64_t>(token) * logits_stride * (kind == 0 ? 4 : 2);
  const Candidate none{-1, -kInfinity, 0x7fffffff};
  Candidate last{2, kInfinity, -1};
  float sum = 0.0f;
  for (int slot = 0; slot < top_k; ++slot) {
    Candidate best = none;
    for (int id = lanes.get_local_linear_id(); id < num_experts; id += kLanes) {
      Candidate here = candidate(logits, bias, row, id, flags);
      if (before(last, here) && before(here, best)) best = here;
    }
    for (int step = kLanes / 2; step > 0; step /= 2) {
      Candidate other{sycl::permute_group_by_xor(lanes, best.usable, step),
                      sycl::permute_group_by_xor(lanes, best.choice, step),
                      sycl::permute_group_by_xor(lanes, best.id, step)};
      if (before(other, best)) best = other;
    }
    last = best;
    float score = 0.0f;
    if (best.usable == 1) score = sigmoid(load_kind(static_cast<const char*>(logits) + row, best.id, kind));
    chosen[slot] = {score, best.id};
    sum += score;
  }
  const float divisor = flags & abi::RENORMALIZE ? sum + 1e-20f : 1.0f;
  for (int slot = 0; slot < top_k; ++slot) chosen[slot].weight = chosen[slot].weight / divisor * route_scale;
}

}  // namespace twin
