// What the twins share: conversions without half arithmetic, a sub-group of 16, nibble values.
//
// A twin is an ordinary SYCL kernel that computes what the ESIMD kernel of the same name computes, from the same
// arguments. It serves Intel GPUs whose driver has no vector back end, and it is what runs on the OpenCL CPU device.
// half and bfloat16 are read and written as 16-bit words, so that a device without the fp16 aspect takes the module too.
#pragma once

#include <sycl/sycl.hpp>

#include "../kernels/abi.hpp"

namespace twin {

namespace abi = xpu_moe::abi;
namespace syclexp = sycl::ext::oneapi::experimental;
using sycl::ext::oneapi::this_work_item::get_nd_item;

constexpr int kLanes = 16;  // every Intel GPU since Gen9 has sub-groups of 16

#define XM_TWIN                                                                                               \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((twin::syclexp::nd_range_kernel<3>))                           \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((twin::syclexp::sub_group_size<twin::kLanes>)) void

inline float bits_to_float(uint32_t bits) { return sycl::bit_cast<float>(bits); }
inline uint32_t float_to_bits(float value) { return sycl::bit_cast<uint32_t>(value); }

struct F32 {
  using Word = float;
  static float load(Word word) { return word; }
  static Word store(float value) { return value; }
};

struct Bf16 {
  using Word = uint16_t;
  static float load(Word word) { return bits_to_float(static_cast<uint32_t>(word) << 16); }
  static Word store(float value) {  // to nearest, ties to even; a NaN stays one
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<Word>((bits >> 16) | 0x40u);
    return static_cast<Word>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

struct F16 {
  using Word = uint16_t;
  static float load(Word word) {
    uint32_t sign = static_cast<uint32_t>(word & 0x8000u) << 16, rest = word & 0x7fffu;
    if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
    // The exponent is moved by a multiplication, which is exact and puts subnormals right as well.
    float value = bits_to_float(rest << 13) * bits_to_float(0x77800000u);  // 2^112
    return bits_to_float(float_to_bits(value) | sign);
  }
  static Word store(float value) {  // to nearest, ties to even; too large becomes infinity
    uint32_t bits = float_to_bits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return static_cast<Word>(sign | 0x7e00u);
    if (rest >= 0x47800000u) return static_cast<Word>(sign | 0x7c00u);
    if (rest < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded mantissa in the low bits
      float shifted = bits_to_float(rest) + 0.5f;
      return static_cast<Word>(sign | (float_to_bits(shifted) - 0x3f000000u));
    }
    uint32_t rounded = rest + 0xfffu + ((rest >> 13) & 1u);
    return static_cast<Word>(sign | ((rounded - 0x38000000u) >> 13));
  }
};

// The nibble's value: u4 = code - 8, s4 = two's complement = (code ^ 8) - 8. `flip` is 0 or 8.
inline float nibble(uint32_t code, uint32_t flip) { return static_cast<float>(static_cast<int>((code & 15u) ^ flip) - 8); }

// Element `at` of an array whose kind is known at run time only: 0 float32, 1 float16, 2 bfloat16 (abi::KINDS).
inline float load_kind(const void* base, int at, int kind) {
  if (kind == 0) return static_cast<const float*>(base)[at];
  uint16_t word = static_cast<const uint16_t*>(base)[at];
  return kind == 1 ? F16::load(word) : Bf16::load(word);
}

inline int load_id(const void* ids, int at, int flags) {
  if (!(flags & abi::IDS_64)) return static_cast<const int32_t*>(ids)[at];
  int64_t id = static_cast<const int64_t*>(ids)[at];
  return id < 0 || id > 0x7fffffff ? -1 : static_cast<int>(id);
}

}  // namespace twin
