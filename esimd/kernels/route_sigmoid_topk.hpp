// route_sigmoid_topk: weights and ids of the experts of each token. One thread a token; the work is in routing.hpp.
#pragma once

#include "routing.hpp"

namespace xpu_moe {

ESIMD_INLINE void route_sigmoid_topk(
    const void* logits, const void* bias, float* weights, int* ids, int tokens, int num_experts, int top_k,
    int logits_stride, int flags, float route_scale) {
  const int token = XPU_MOE_ITEM.get_group(2);
  if (token >= tokens) return;
  const Route r = route(logits, int64_t(token) * logits_stride, bias, num_experts, top_k, flags, route_scale);
  store_route(r, token, top_k, weights, ids);
}

}  // namespace xpu_moe
