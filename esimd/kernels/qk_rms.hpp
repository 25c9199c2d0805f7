// qk_rms_partial, qk_rms_apply: RMS norm of Q and K over the whole width of all heads, of which this rank has a slice.
// Between the two, `sums` is all-reduced in place. Semantics: xpu_moe/ops/qk_rms.py.
//
//     partial   group (-, token, Q or K): 8 threads, blocks of 128 elements in turn, added up through SLM
//     apply     one thread for each 128 elements of Q, then of K
#pragma once

#include "common.hpp"

namespace xpu_moe {

constexpr int RMS_LOCAL = 8;
constexpr int RMS_BLOCK = 128;

template <class T, int N>
ESIMD_INLINE simd<float, N> to_float(simd<T, N> value) {
  if constexpr (std::is_same_v<T, half>) return esimd::convert<float>(value);
  return from_bfloat16<N>(value.template bit_cast_view<uint16_t>());
}

// `count` (a multiple of 32, at most 128) elements from p on, the rest 0.
template <class T>
ESIMD_INLINE simd<float, RMS_BLOCK> load_rms(const T* p, int count) {
  simd<float, RMS_BLOCK> values = 0.0f;
  if (count >= RMS_BLOCK) return to_float<T, RMS_BLOCK>(load_block<T, RMS_BLOCK, 4>(p));
#pragma unroll
  for (int i = 0; i < RMS_BLOCK; i += 32)
    if (i < count) values.template select<32, 1>(i) = to_float<T, 32>(load_block<T, 32, 4>(p + i));
  return values;
}

template <class T>
ESIMD_INLINE void qk_rms_partial(const T* qkv, float* sums, int tokens, int q_size, int kv_size, int qkv_stride) {
  using namespace esimd;
  slm_init<RMS_LOCAL * 4>();
  const auto item = XPU_MOE_ITEM;
  const int token = item.get_group(1), which = item.get_group(2), thread = item.get_local_id(2);
  const int size = which ? kv_size : q_size;
  const T* row = qkv + int64_t(token) * qkv_stride + (which ? q_size : 0);
  simd<float, RMS_BLOCK> squares = 0.0f;
  for (int at = thread * RMS_BLOCK; at < size; at += RMS_LOCAL * RMS_BLOCK) {
    const simd<float, RMS_BLOCK> values = load_rms<T>(row + at, size - at);
    squares += values * values;
  }
  slm_block_store<float, 1>(thread * 4, simd<float, 1>(reduce<float>(squares, std::plus<>())));
  barrier();
  if (thread != 0) return;
  float total = 0.0f;
  for (int t = 0; t < RMS_LOCAL; ++t) total += slm_block_load<float, 1>(t * 4)[0];
  store_one(sums + token * 2 + which, total);
}

// 32 norm weights of a dtype known at run time.
ESIMD_INLINE simd<float, 32> load_norm_weights(const void* base, int first, int kind) {
  if (kind == 0) return load_block<float, 32, 4>(static_cast<const float*>(base) + first);
  const simd<uint16_t, 32> bits = load_block<uint16_t, 32, 4>(static_cast<const uint16_t*>(base) + first);
  return kind == 1 ? from_float16<32>(bits) : from_bfloat16<32>(bits);
}

// One block of 128 elements from `at` on of a vector of `size`.
template <class T>
ESIMD_INLINE void rms_block(
    const T* from, T* to, const void* weights, float sum, int at, int size, int world_size, int flags, float eps) {
  using namespace esimd;
  const float factor = esimd::rsqrt(sum * esimd::inv(float(size) * float(world_size)) + eps);
#pragma unroll
  for (int i = 0; i < RMS_BLOCK; i += 32) {
    if (at + i >= size) continue;
    simd<float, 32> values = to_float<T, 32>(load_block<T, 32, 4>(from + at + i));
    const simd<float, 32> w = load_norm_weights(weights, at + i, flags >> abi::WEIGHTS_SHIFT & 3);
    simd<uint16_t, 32> bits = to_bits<T, 32>(simd<float, 32>(values * factor * w));
    block_store<uint32_t, 16>(
        reinterpret_cast<uint32_t*>(to + at + i), bits.template bit_cast_view<uint32_t>(), properties{alignment<4>});
  }
}

template <class T>
ESIMD_INLINE void qk_rms_apply(
    const T* qkv, float* sums, const void* q_weight, const void* k_weight, T* q_out, T* k_out, int tokens, int q_size,
    int kv_size, int qkv_stride, int q_out_stride, int k_out_stride, int world_size, int flags, float eps) {
  const auto item = XPU_MOE_ITEM;
  const int token = item.get_group(1), block = item.get_group(2);
  const int q_blocks = (q_size + RMS_BLOCK - 1) / RMS_BLOCK;
  const T* row = qkv + int64_t(token) * qkv_stride;
  if (block < q_blocks)
    rms_block<T>(
        row, q_out + int64_t(token) * q_out_stride, q_weight, load_one(sums + token * 2), block * RMS_BLOCK, q_size,
        world_size, flags, eps);
  else
    rms_block<T>(
        row + q_size, k_out + int64_t(token) * k_out_stride, k_weight, load_one(sums + token * 2 + 1),
        (block - q_blocks) * RMS_BLOCK, kv_size, world_size, flags, eps);
}

}  // namespace xpu_moe
