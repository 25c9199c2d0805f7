// route_sigmoid_topk: weights and ids of the experts of each token. One group of 8 threads a token; see routing.hpp.
#pragma once

#include "routing.hpp"

namespace xpu_moe {

ESIMD_INLINE void route_sigmoid_topk(
    const void* logits, const void* bias, float* weights, int* ids, int tokens, int num_experts, int top_k,
    int logits_stride, int flags, float route_scale) {
  esimd::slm_init<route_slm(1)>();
  const auto item = XPU_MOE_ITEM;
  const int token = item.get_group(2), thread = item.get_local_id(2);
  keys_to_slm<1>(0, thread, logits, logits_stride, token, tokens, bias, num_experts, flags);
  esimd::barrier();
  if (thread != 0) return;
  const Route r = route_from_slm<1>(0, 0, logits, int64_t(token) * logits_stride, top_k, flags, route_scale);
  store_route(r, token, top_k, weights, ids);
}

}  // namespace xpu_moe
