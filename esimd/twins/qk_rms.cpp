// SIMT twins of qk_rms_partial and qk_rms_apply; semantics in xpu_moe/ops/qk_rms.py.
//
//   partial  one sub-group for a row's Q, one for its K (group 2's index): strided sums, one reduction
//   apply    one sub-group for 128 elements of Q, then of K
#include "twin.hpp"

namespace twin {

constexpr int kBlock = 128;

template <class T> void partial(const typename T::Word* qkv, float* sums, int q_size, int kv_size, int qkv_stride) {
  auto item = get_nd_item<3>();
  auto lanes = item.get_sub_group();
  const int token = item.get_group(1), part = item.get_group(2);
  const typename T::Word* row = qkv + static_cast<int64_t>(token) * qkv_stride + (part ? q_size : 0);
  float sum = 0.0f;
  for (int at = lanes.get_local_linear_id(); at < (part ? kv_size : q_size); at += kLanes) {
    float value = T::load(row[at]);
    sum += value * value;
  }
  sum = sycl::reduce_over_group(lanes, sum, sycl::plus<>());
  if (lanes.get_local_linear_id() == 0) sums[token * 2 + part] = sum;
}

template <class T>
void apply(const typename T::Word* qkv, const float* sums, const void* q_weight, const void* k_weight,
           typename T::Word* q_out, typename T::Word* k_out, int q_size, int kv_size, int qkv_stride, int q_out_stride,
           int k_out_stride, int world_size, int flags, float eps) {
  auto item = get_nd_item<3>();
  const int token = item.get_group(1), q_blocks = (q_size + kBlock - 1) / kBlock;
  const bool is_k = static_cast<int>(item.get_group(2)) >= q_blocks;
  const int start = (static_cast<int>(item.get_group(2)) - (is_k ? q_blocks : 0)) * kBlock;
  const int size = is_k ? kv_size : q_size;
  const typename T::Word* row = qkv + static_cast<int64_t>(token) * qkv_stride + (is_k ? q_size : 0);
  typename T::Word* to = is_k ? k_out + static_cast<int64_t>(token) * k_out_stride
                              : q_out + static_cast<int64_t>(token) * q_out_stride;
  const float mean = sums[token * 2 + is_k] / (static_cast<float>(size) * static_cast<float>(world_size));
  const float scale = 1.0f / sycl::sqrt(mean + eps);
  const int end = start + kBlock < size ? start + kBlock : size;
  for (int at = start + static_cast<int>(item.get_local_id(2)); at < end; at += kLanes)
    to[at] = T::store(T::load(row[at]) * scale *
                      load_kind(is_k ? k_weight : q_weight, at, flags >> abi::WEIGHTS_SHIFT & 3));
}

}  // namespace twin

#define XM_RMS_TWINS(NAME, T)                                                                                        \
  XM_TWIN qk_rms_partial_##NAME(const T::Word* qkv, float* sums, int tokens, int q_size, int kv_size,                \
                                int qkv_stride) {                                                                    \
    twin::partial<T>(qkv, sums, q_size, kv_size, qkv_stride);                                                        \
  }                                                                                                                  \
  XM_TWIN qk_rms_apply_##NAME(const T::Word* qkv, const float* sums, const void* q_weight, const void* k_weight,     \
                              T::Word* q_out, T::Word* k_out, int tokens, int q_size, int kv_size, int qkv_stride,   \
                              int q_out_stride, int k_out_stride, int world_size, int flags, float eps) {            \
    twin::apply<T>(qkv, sums, q_weight, k_weight, q_out, k_out, q_size, kv_size, qkv_stride, q_out_stride,           \
                   k_out_stride, world_size, flags, eps);                                                            \
  }

XM_RMS_TWINS(f16, twin::F16)
XM_RMS_TWINS(bf16, twin::Bf16)
