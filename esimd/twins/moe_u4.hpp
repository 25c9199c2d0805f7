// SIMT twins of moe_u4_up and moe_u4_down, for one activation type and one group size; the argument lists are abi.py's.
//
//   up    one sub-group of 16 for a (token, route, column): its lanes walk the gate row and the up row, 8 nibbles each
//   down  one sub-group for a (token, output row): it walks the row of w2 of every route, in the order of the routes,
//         weighs in registers and writes once. No atomics; the order of every sum is fixed
//
// `split` is the ESIMD kernels' matter and not read. `logits` is always null: where the routing is to be computed too, the
// twin's program has route_sigmoid_topk in front (every sub-group of `up` routing again would double its work).
#pragma once

#include "twin.hpp"

namespace twin {

// Where a column of the hidden vector lies (launch.hidden_position): in each block of 32, even columns, then odd ones.
inline int hidden_position(int column) { return (column & ~31) | (column & 1) << 4 | (column & 31) >> 1; }

inline float scale_at(const uint16_t* scales, int64_t at, int flags) {
  return flags & abi::SCALE_BF16 ? Bf16::load(scales[at]) : F16::load(scales[at]);
}

// Sum over k of scale * nibble * value(k), for one row of `length` weights in groups of `group`; every lane gets it.
template <int Group, class Value>
float row_dot(const uint8_t* row, const uint16_t* scales, int length, int flags, sycl::sub_group lanes, Value value) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(row);
  const uint32_t flip = flags & abi::S4 ? 8 : 0;
  float sum = 0.0f;
  for (int at = lanes.get_local_linear_id(); at < length / 8; at += kLanes) {
    float part = 0.0f;
    for (int j = 0; j < 8; ++j) part += nibble(words[at] >> (4 * j), flip) * value(at * 8 + j);
    sum += scale_at(scales, at * 8 / Group, flags) * part;
  }
  return sycl::reduce_over_group(lanes, sum, sycl::plus<>());
}

inline float activated(float gate, int flags) {
  if (flags & abi::RELU2) {
    float positive = sycl::fmax(gate, 0.0f);
    return positive * positive;
  }
  return gate / (1.0f + sycl::exp(-gate));
}

template <class T, int Group>
void up(const typename T::Word* x, const uint8_t* w13, const uint16_t* w13_scale, const void* topk_ids,
        float* hidden, int hidden_size, int intermediate_size, int num_experts, int top_k, int x_stride, int flags) {
  auto item = get_nd_item<3>();
  auto lanes = item.get_sub_group();
  const int token = item.get_group(0), slot = item.get_group(1);
  const int column = item.get_group(2) * (item.get_local_range(2) / kLanes) + lanes.get_group_linear_id();
  if (column >= intermediate_size) return;
  const int expert = load_id(topk_ids, token * top_k + slot, flags);
  float* place = hidden + (static_cast<int64_t>(token) * top_k + slot) * intermediate_size + hidden_position(column);
  const bool first = lanes.get_local_linear_id() == 0;
  if (expert < 0 || expert >= num_experts) {
    if (first) *place = 0.0f;
    return;
  }
  const bool gated = flags & abi::GATED;
  const typename T::Word* row_x = x + static_cast<int64_t>(token) * x_stride;
  auto dot = [&](int row_in_expert) {
    int64_t row = static_cast<int64_t>(expert) * (gated ? 2 : 1) * intermediate_size + row_in_expert;
    return row_dot<Group>(w13 + row * (hidden_size / 2), w13_scale + row * (hidden_size / Group), hidden_size, flags,
                          lanes, [&](int k) { return T::load(row_x[k]); });
  };
  float result = activated(dot(column), flags);
  if (gated) result *= dot(intermediate_size + column);
  if (first) *place = result;
}

template <class T, int Group>
void down(const float* hidden, const uint8_t* w2, const uint16_t* w2_scale, const void* topk_ids,
          const void* topk_weights, typename T::Word* out, int hidden_size, int intermediate_size, int num_experts,
          int top_k, int out_stride, int flags) {
  auto item = get_nd_item<3>();
  auto lanes = item.get_sub_group();
  const int token = item.get_group(1);
  const int h = item.get_group(2) * (item.get_local_range(2) / kLanes) + lanes.get_group_linear_id();
  if (h >= hidden_size) return;
  float total = 0.0f;
  for (int slot = 0; slot < top_k; ++slot) {
    const int route = token * top_k + slot, expert = load_id(topk_ids, route, flags);
    if (expert < 0 || expert >= num_experts) continue;
    const float* values = hidden + static_cast<int64_t>(route) * intermediate_size;
    int64_t row = static_cast<int64_t>(expert) * hidden_size + h;
    float dot = row_dot<Group>(w2 + row * (intermediate_size / 2), w2_scale + row * (intermediate_size / Group),
                               intermediate_size, flags, lanes, [&](int k) { return values[hidden_position(k)]; });
    total += load_kind(topk_weights, route, flags >> abi::WEIGHTS_SHIFT & 3) * dot;
  }
  if (lanes.get_local_linear_id() == 0) out[static_cast<int64_t>(token) * out_stride + h] = T::store(total);
}

}  // namespace twin

#define XM_MOE_TWINS(NAME, T, GROUP)                                                                                   \
  XM_TWIN moe_u4_up_##NAME(const T::Word* x, const uint8_t* w13, const uint16_t* w13_scale, const void* topk_ids,      \
                           const void* logits, const void* bias, float* hidden, float* route_weights,                 \
                           int32_t* route_ids, int tokens, int hidden_size, int intermediate_size, int num_experts,   \
                           int top_k, int x_stride, int split, int flags, float route_scale) {                        \
    twin::up<T, GROUP>(x, w13, w13_scale, topk_ids, hidden, hidden_size, intermediate_size, num_experts, top_k,       \
                       x_stride, flags);                                                                              \
  }                                                                                                                    \
  XM_TWIN moe_u4_down_##NAME(const float* hidden, const uint8_t* w2, const uint16_t* w2_scale, const void* topk_ids,   \
                             const void* topk_weights, T::Word* out, int tokens, int hidden_size,                     \
                             int intermediate_size, int num_experts, int top_k, int out_stride, int split,            \
                             int flags) {                                                                             \
    twin::down<T, GROUP>(hidden, w2, w2_scale, topk_ids, topk_weights, out, hidden_size, intermediate_size,           \
                         num_experts, top_k, out_stride, flags);                                                      \
  }
