// Math and bit intrinsics of the host run. Hardware math is 1 to 4 ULP; here it is libm's float result.
#pragma once

// ---- native functions: float vectors and scalars ----
#define XPU_MOE_NATIVE(name, expression)                                    \
  template <typename T>                                                     \
  T __spirv_ocl_native_##name(T x) {                                        \
    static_assert(std::is_same_v<T, float>, "native math: float only");     \
    return expression;                                                      \
  }                                                                         \
  template <typename T, int N>                                              \
  host_vector<T, N> __spirv_ocl_native_##name(host_vector<T, N> v) {        \
    static_assert(std::is_same_v<T, float>, "native math: float only");     \
    for (int i = 0; i < N; ++i) {                                           \
      const float x = v[i];                                                 \
      v[i] = expression;                                                    \
    }                                                                       \
    return v;                                                               \
  }
XPU_MOE_NATIVE(recip, 1.0f / x)
XPU_MOE_NATIVE(exp2, std::exp2(x))
XPU_MOE_NATIVE(log2, std::log2(x))
XPU_MOE_NATIVE(sqrt, std::sqrt(x))
XPU_MOE_NATIVE(rsqrt, 1.0f / std::sqrt(x))
#undef XPU_MOE_NATIVE

#define XPU_MOE_ELEMENTWISE(name, expression)                                             \
  template <typename T, int N>                                                            \
  inline host_vector<T, N> __esimd_##name(host_vector<T, N> a, host_vector<T, N> b) {     \
    for (int i = 0; i < N; ++i) a[i] = (expression);                                      \
    return a;                                                                             \
  }
XPU_MOE_ELEMENTWISE(fmax, std::fmax(a[i], b[i]))
XPU_MOE_ELEMENTWISE(fmin, std::fmin(a[i], b[i]))
XPU_MOE_ELEMENTWISE(umax, a[i] > b[i] ? a[i] : b[i])
XPU_MOE_ELEMENTWISE(smax, a[i] > b[i] ? a[i] : b[i])
XPU_MOE_ELEMENTWISE(umin, a[i] < b[i] ? a[i] : b[i])
XPU_MOE_ELEMENTWISE(smin, a[i] < b[i] ? a[i] : b[i])
#undef XPU_MOE_ELEMENTWISE

template <typename T, int N>
inline host_vector<T, N> __esimd_abs(host_vector<T, N> a) {
  for (int i = 0; i < N; ++i) a[i] = std::is_floating_point_v<T> ? std::fabs(a[i]) : a[i] < 0 ? -a[i] : a[i];
  return a;
}

template <int N>
inline uint32_t __esimd_pack_mask(__ESIMD_DNS::vector_type_t<uint16_t, N> mask) {
  uint32_t bits = 0;
  for (int i = 0; i < N; ++i) bits |= uint32_t(mask[i] != 0) << i;
  return bits;
}

// the lowest bit that is set; all ones for 0, as the hardware says
template <typename T, int N>
inline host_vector<T, N> __esimd_fbl(host_vector<T, N> v) {
  for (int i = 0; i < N; ++i) v[i] = v[i] ? __builtin_ctz(uint32_t(v[i])) : ~0u;
  return v;
}
