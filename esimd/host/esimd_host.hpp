// Real <sycl/ext/intel/esimd.hpp> kernels on the host CPU: included by kernels/common.hpp under XPU_MOE_HOST.
//
// Intel's headers carry host code for regions, select, convert and reduce. What they declare and leave out is defined
// here and in esimd_host_memory.hpp: memory, SLM, barriers, math. An intrinsic that is missing is an undefined symbol at
// link time, never a silent value. Needs clang (vector extensions); written against intel-sycl-rt 2026.1.2.
//
// Three places of those headers need care:
//  * declarations end in __ESIMD_INTRIN_END, a host body that throws: it becomes ";" so that ours is found;
//  * half and bfloat16 conversions give up on the host in the *_type_traits headers: replaced while they are read;
//  * math.hpp's host branches of inv, exp2, log2, sqrt, rsqrt return 0 without a word: it is read in its device form.
#pragma once

#define SYCL_DISABLE_FSYCL_SYCLHPP_WARNING
#include "machine.hpp"

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include <sycl/ext/intel/esimd/detail/util.hpp>
#undef __ESIMD_INTRIN
#undef __ESIMD_INTRIN_END
#define __ESIMD_INTRIN inline
#define __ESIMD_INTRIN_END ;

namespace xpu_moe::host {

inline float half_to_float(uint16_t bits) {
  _Float16 h;
  std::memcpy(&h, &bits, 2);
  return float(h);
}
inline uint16_t float_to_half(float value) {
  const _Float16 h = _Float16(value);
  uint16_t bits;
  std::memcpy(&bits, &h, 2);
  return bits;
}
inline float bfloat16_to_float(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
inline uint16_t float_to_bfloat16(float value) {  // to nearest, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// A vector `from` on its way to whatever the surrounding function returns: floats <-> 16-bit patterns.
template <class V, bool BF16>
struct Converted {
  const V& from;
  template <class R>
  operator R() const {
    R result;
    if constexpr (std::is_integral_v<V>) {
      std::memcpy(&result, &from, sizeof result);
    } else {
      constexpr int n = sizeof(V) / sizeof(from[0]);
      for (int i = 0; i < n; ++i) {
        if constexpr (sizeof(from[0]) == 4) {
          const uint16_t bits = BF16 ? float_to_bfloat16(from[i]) : float_to_half(from[i]);
          std::memcpy(reinterpret_cast<char*>(&result) + 2 * i, &bits, 2);
        } else {
          uint16_t bits;
          std::memcpy(&bits, reinterpret_cast<const char*>(&from) + 2 * i, 2);
          result[i] = BF16 ? bfloat16_to_float(bits) : half_to_float(bits);
        }
      }
    }
    return result;
  }
};

}  // namespace xpu_moe::host

#pragma push_macro("__ESIMD_UNSUPPORTED_ON_HOST")
#undef __ESIMD_UNSUPPORTED_ON_HOST
#define __ESIMD_UNSUPPORTED_ON_HOST return ::xpu_moe::host::Converted<decltype(Val), false>{Val}
#include <sycl/ext/intel/esimd/detail/half_type_traits.hpp>
#undef __ESIMD_UNSUPPORTED_ON_HOST
#define __ESIMD_UNSUPPORTED_ON_HOST return ::xpu_moe::host::Converted<decltype(Val), true>{Val}
#include <sycl/ext/intel/esimd/detail/bfloat16_type_traits.hpp>
#pragma pop_macro("__ESIMD_UNSUPPORTED_ON_HOST")

// What math.hpp includes comes first, as host code; then math.hpp alone as device code.
#include <sycl/ext/intel/esimd/common.hpp>
#include <sycl/ext/intel/esimd/detail/math_intrin.hpp>
#include <sycl/ext/intel/esimd/detail/operators.hpp>
#include <sycl/ext/intel/esimd/simd.hpp>
#include <sycl/ext/intel/esimd/simd_view.hpp>
#include <sycl/ext/intel/experimental/esimd/detail/math_intrin.hpp>

template <class T, int N>
using host_vector = __ESIMD_DNS::vector_type_t<__ESIMD_DNS::__raw_t<T>, N>;

template <typename T, int N>
std::pair<host_vector<T, N>, host_vector<T, N>> __spirv_IAddCarry(host_vector<T, N>, host_vector<T, N>);
template <typename T, int N>
std::pair<host_vector<T, N>, host_vector<T, N>> __spirv_ISubBorrow(host_vector<T, N>, host_vector<T, N>);
uint64_t __spirv_ReadClockKHR(int);

#define __SYCL_DEVICE_ONLY__ 1
#include <sycl/ext/intel/esimd/math.hpp>
#undef __SYCL_DEVICE_ONLY__
#include <sycl/ext/intel/esimd.hpp>

#include "esimd_host_math.hpp"
#include "esimd_host_memory.hpp"
#include "entries.hpp"

#define XPU_MOE_KERNEL extern "C"
#define XPU_MOE_ITEM ::xpu_moe::host::item
