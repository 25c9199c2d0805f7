// What every kernel needs of ESIMD: the entry macro, loads and stores with the cache hints that we mean.
//
// All global memory goes through the functions of this file, never through a plain dereference: the byte counter of the
// host run sees messages.
#pragma once

#ifdef XPU_MOE_HOST
#include "esimd_host.hpp"
#else
#include <sycl/sycl.hpp>
#include <sycl/ext/intel/esimd.hpp>
#define XPU_MOE_KERNEL                                                                                                 \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<3>)) SYCL_ESIMD_KERNEL
#define XPU_MOE_ITEM sycl::ext::oneapi::this_work_item::get_nd_item<3>()
#endif

#include <cstdint>
#include <type_traits>

#include "abi.hpp"

namespace xpu_moe {

namespace esimd = sycl::ext::intel::esimd;
using esimd::simd;
using esimd::simd_mask;
using half = sycl::half;
using bfloat16 = sycl::ext::oneapi::bfloat16;

// Weights are read once: past L1, kept in L2 for the next token tile. The rest is small and read by many threads.
template <int Align>
inline constexpr auto STREAM = esimd::properties{
    esimd::alignment<Align>, esimd::cache_hint_L1<esimd::cache_hint::streaming>,
    esimd::cache_hint_L2<esimd::cache_hint::cached>};
template <int Align>
inline constexpr auto KEEP = esimd::properties{
    esimd::alignment<Align>, esimd::cache_hint_L1<esimd::cache_hint::cached>,
    esimd::cache_hint_L2<esimd::cache_hint::cached>};

inline constexpr auto SCALE_HINTS = esimd::properties{
    esimd::cache_hint_L1<esimd::cache_hint::cached>, esimd::cache_hint_L2<esimd::cache_hint::cached>};

constexpr int ALIGN = 16;  // bytes; of tensors and of their rows

// Row `row` of a matrix whose rows are `pitch` bytes, a multiple of 16: in units of 16 bytes the offset fits 32 bits
// (launch.unsupported checks that), and a 64-bit product takes 8 instructions.
ESIMD_INLINE const uint8_t* row_of(const uint8_t* base, int row, int pitch) {
  return base + (int64_t(row * (pitch >> 4)) << 4);
}

template <class T, int N>
ESIMD_INLINE simd<T, N> load_weights(const T* p) {
  return esimd::block_load<T, N>(p, STREAM<ALIGN>);
}
template <class T, int N, int Align = ALIGN>
ESIMD_INLINE simd<T, N> load_block(const T* p) {
  return esimd::block_load<T, N>(p, KEEP<Align>);
}

// N elements from p on, those with index >= count as `fill`, never read.
template <class T, int N>
ESIMD_INLINE simd<T, N> load_some(const T* p, int count, T fill, int stride = 1) {
  const simd<uint32_t, N> lane(0, 1);
  const simd_mask<N> there = lane < uint32_t(count < 0 ? 0 : count);
  return esimd::gather<T, N>(p, simd<uint32_t, N>(lane * uint32_t(stride * sizeof(T))), there, simd<T, N>(fill));
}

template <class T>
ESIMD_INLINE T load_one(const T* p) {
  return esimd::gather<T, 1>(p, simd<uint32_t, 1>(0u))[0];
}
template <class T>
ESIMD_INLINE void store_one(T* p, T value) {
  esimd::scatter<T, 1>(p, simd<uint32_t, 1>(0u), simd<T, 1>(value));
}

// 16-bit patterns -> float32
template <int N>
ESIMD_INLINE simd<float, N> from_bfloat16(simd<uint16_t, N> bits) {
  simd<uint32_t, N> wide = esimd::convert<uint32_t>(bits);
  wide <<= 16;
  return wide.template bit_cast_view<float>();
}
template <int N>
ESIMD_INLINE simd<float, N> from_float16(simd<uint16_t, N> bits) {
  return esimd::convert<float>(simd<half, N>(bits.template bit_cast_view<half>()));
}

// float32 -> T, as its 16-bit pattern
template <class T, int N>
ESIMD_INLINE simd<uint16_t, N> to_bits(simd<float, N> value) {
  simd<T, N> rounded = esimd::convert<T>(value);
  return rounded.template bit_cast_view<uint16_t>();
}

// One float of a dtype known at run time (abi.hpp: 0 float32, 1 float16, 2 bfloat16).
ESIMD_INLINE float load_float(const void* base, int index, int kind) {
  if (kind == 0) return load_one(static_cast<const float*>(base) + index);
  const simd<uint16_t, 1> bits = load_one(static_cast<const uint16_t*>(base) + index);
  return (kind == 1 ? from_float16<1>(bits) : from_bfloat16<1>(bits))[0];
}

// A row of floats of a dtype known at run time.
template <int N>
ESIMD_INLINE simd<float, N> load_floats(const void* base, int64_t first, int count, int kind, float fill) {
  if (kind == 0) return load_some<float, N>(static_cast<const float*>(base) + first, count, fill);
  const simd<uint16_t, N> bits = load_some<uint16_t, N>(static_cast<const uint16_t*>(base) + first, count, 0);
  const simd<uint32_t, N> lane(0, 1);
  simd<float, N> value = kind == 1 ? from_float16<N>(bits) : from_bfloat16<N>(bits);
  value.merge(simd<float, N>(fill), lane >= uint32_t(count < 0 ? 0 : count));
  return value;
}

}  // namespace xpu_moe
