// 16-bit activations -> float32, and the activation function.
#pragma once

#include "common.hpp"

namespace xpu_moe {

// 32 activations as float32: the even ones, the odd ones (the order in which nibbles come apart).
template <class T>
struct Pairs {
  simd<float, 16> even, odd;

  ESIMD_INLINE explicit Pairs(simd<T, 32> x) {
    if constexpr (std::is_same_v<T, half>) {
      even = esimd::convert<float>(simd<half, 16>(x.template select<16, 2>(0)));
      odd = esimd::convert<float>(simd<half, 16>(x.template select<16, 2>(1)));
    } else {
      const simd<uint32_t, 16> words = x.template bit_cast_view<uint32_t>();
      simd<uint32_t, 16> low = words << 16, high = words & 0xFFFF0000u;
      even = low.template bit_cast_view<float>();
      odd = high.template bit_cast_view<float>();
    }
  }
};

template <int N>
ESIMD_INLINE simd<float, N> activate(simd<float, N> value, int flags) {
  if (flags & abi::RELU2) {
    const simd<float, N> positive = (esimd::max)(value, simd<float, N>(0.0f));
    return positive * positive;
  }
  return value * esimd::inv(simd<float, N>(1.0f + esimd::exp(simd<float, N>(-value))));
}

}  // namespace xpu_moe
