// SIMT twin of route_sigmoid_topk: one sub-group a token.
#include "route.hpp"

XM_TWIN route_sigmoid_topk(const void* logits, const void* bias, float* weights, int32_t* ids, int tokens,
                           int num_experts, int top_k, int logits_stride, int flags, float route_scale) {
  auto item = twin::get_nd_item<3>();
  auto lanes = item.get_sub_group();
  const int token = item.get_group(2);
  twin::Route chosen[twin::abi::MAX_TOP_K];
  twin::route_token(logits, bias, token, num_experts, top_k, logits_stride, flags, route_scale, lanes, chosen);
  if (lanes.get_local_linear_id() != 0) return;
  for (int slot = 0; slot < top_k; ++slot) {
    weights[token * top_k + slot] = chosen[slot].weight;
    ids[token * top_k + slot] = chosen[slot].id;
  }
}
