// Memory intrinsics of the host run: global memory (counted), SLM (checked against slm_init), barrier and fence.
#pragma once

namespace xpu_moe::host {

template <size_t A>
inline void aligned(const void* p) {
  if (A > 1 && reinterpret_cast<uintptr_t>(p) % A)
    die("misaligned message", long(reinterpret_cast<uintptr_t>(p) % A), long(A));
}

// bytes that a message moves per element: 8- and 16-bit ones travel in 32-bit registers
template <__ESIMD_DNS::lsc_data_size D, class T>
constexpr int element_bytes() {
  using S = __ESIMD_DNS::lsc_data_size;
  return D == S::u8 || D == S::u8u32 ? 1 : D == S::u16 || D == S::u16u32 ? 2 : int(sizeof(T));
}

}  // namespace xpu_moe::host

// ---- block messages ----

template <typename T, int N, size_t A>
inline __ESIMD_DNS::vector_type_t<T, N> __esimd_svm_block_ld(const __ESIMD_DNS::vector_type_t<T, N>* p) {
  xpu_moe::host::aligned<A>(p);
  __ESIMD_DNS::vector_type_t<T, N> r;
  xpu_moe::host::load(&r, p, N * sizeof(T));
  return r;
}
template <typename T, int N, size_t A>
inline void __esimd_svm_block_st(__ESIMD_DNS::vector_type_t<T, N>* p, __ESIMD_DNS::vector_type_t<T, N> v) {
  xpu_moe::host::aligned<A>(p);
  xpu_moe::host::store(p, &v, N * sizeof(T));
}
template <typename T, int N, size_t A>
inline __ESIMD_DNS::vector_type_t<T, N> __esimd_slm_block_ld(uint32_t offset) {
  __ESIMD_DNS::vector_type_t<T, N> r;
  std::memcpy(&r, xpu_moe::host::slm(offset, N * sizeof(T)), N * sizeof(T));
  return r;
}
template <typename T, int N, size_t A>
inline void __esimd_slm_block_st(uint32_t offset, __ESIMD_DNS::vector_type_t<T, N> v) {
  std::memcpy(xpu_moe::host::slm(offset, N * sizeof(T)), &v, N * sizeof(T));
}

// ---- gather and scatter ----

template <typename T, int N, size_t A>
inline __ESIMD_DNS::vector_type_t<T, N> __esimd_gather_ld(
    __ESIMD_DNS::vector_type_t<uint64_t, N> at, __ESIMD_DNS::simd_mask_storage_t<N> mask,
    __ESIMD_DNS::vector_type_t<T, N> otherwise) {
  for (int i = 0; i < N; ++i)
    if (mask[i]) {
      const auto* p = reinterpret_cast<const void*>(at[i]);
      xpu_moe::host::aligned<sizeof(T)>(p);
      T element;
      xpu_moe::host::load(&element, p, sizeof element);
      otherwise[i] = element;
    }
  return otherwise;
}
template <typename T, int N, size_t A>
inline void __esimd_scatter_st(
    __ESIMD_DNS::vector_type_t<T, N> v, __ESIMD_DNS::vector_type_t<uint64_t, N> at,
    __ESIMD_DNS::simd_mask_storage_t<N> mask) {
  for (int i = 0; i < N; ++i)
    if (mask[i]) {
      auto* p = reinterpret_cast<void*>(at[i]);
      xpu_moe::host::aligned<sizeof(T)>(p);
      const T element = v[i];
      xpu_moe::host::store(p, &element, sizeof element);
    }
}
// 1- and 2-byte elements sit 4 or 2 places apart in the register
template <typename T, int N, int NB, int EPA>
inline __ESIMD_DNS::vector_type_t<T, N * __ESIMD_DNS::ElemsPerAddrDecoding(NB)> __esimd_svm_gather(
    __ESIMD_DNS::vector_type_t<uint64_t, N> at, __ESIMD_DNS::simd_mask_storage_t<N> mask) {
  constexpr int APART = __ESIMD_DNS::ElemsPerAddrDecoding(NB);
  __ESIMD_DNS::vector_type_t<T, N * APART> r;
  std::memset(&r, 0xCD, sizeof r);
  for (int i = 0; i < N; ++i)
    if (mask[i]) {
      T element;
      xpu_moe::host::load(&element, reinterpret_cast<const void*>(at[i]), sizeof element);
      r[i * APART] = element;
    }
  return r;
}
template <typename T, int N, int NB, int EPA>
inline void __esimd_svm_scatter(
    __ESIMD_DNS::vector_type_t<uint64_t, N> at,
    __ESIMD_DNS::vector_type_t<T, N * __ESIMD_DNS::ElemsPerAddrDecoding(NB)> v,
    __ESIMD_DNS::simd_mask_storage_t<N> mask) {
  constexpr int APART = __ESIMD_DNS::ElemsPerAddrDecoding(NB);
  for (int i = 0; i < N; ++i)
    if (mask[i]) {
      const T element = v[i * APART];
      xpu_moe::host::store(reinterpret_cast<void*>(at[i]), &element, sizeof element);
    }
}

// ---- LSC messages: N addresses of V elements each (a block message has one address); hints change no value ----

#define XPU_MOE_LSC                                                                                               \
  template <typename T, __ESIMD_NS::cache_hint L1, __ESIMD_NS::cache_hint L2, uint16_t SCALE, int OFFSET,          \
            __ESIMD_DNS::lsc_data_size D, __ESIMD_DNS::lsc_vector_size VS, __ESIMD_DNS::lsc_data_order ORDER, int N>
#define XPU_MOE_LSC_VECTOR __ESIMD_DNS::vector_type_t<T, N * __ESIMD_DNS::to_int<VS>()>

XPU_MOE_LSC inline XPU_MOE_LSC_VECTOR __esimd_lsc_load_merge_stateless(
    __ESIMD_DNS::simd_mask_storage_t<N> mask, __ESIMD_DNS::vector_type_t<uintptr_t, N> at,
    XPU_MOE_LSC_VECTOR otherwise) {
  constexpr int V = __ESIMD_DNS::to_int<VS>(), B = xpu_moe::host::element_bytes<D, T>();
  for (int i = 0; i < N; ++i)
    if (mask[i]) {
      const auto* p = reinterpret_cast<const char*>(at[i] * SCALE + OFFSET);
      xpu_moe::host::aligned<B>(p);
      T elements[V] = {};
      if constexpr (B == sizeof(T)) {
        xpu_moe::host::load(elements, p, sizeof elements);
      } else {
        for (int v = 0; v < V; ++v) xpu_moe::host::load(&elements[v], p + v * B, B);
      }
      for (int v = 0; v < V; ++v) otherwise[v * N + i] = elements[v];
    }
  return otherwise;
}
XPU_MOE_LSC inline void __esimd_lsc_store_stateless(
    __ESIMD_DNS::simd_mask_storage_t<N> mask, __ESIMD_DNS::vector_type_t<uintptr_t, N> at, XPU_MOE_LSC_VECTOR x) {
  constexpr int V = __ESIMD_DNS::to_int<VS>(), B = xpu_moe::host::element_bytes<D, T>();
  for (int i = 0; i < N; ++i)
    if (mask[i]) {
      auto* p = reinterpret_cast<char*>(at[i] * SCALE + OFFSET);
      xpu_moe::host::aligned<B>(p);
      T elements[V];
      for (int v = 0; v < V; ++v) elements[v] = x[v * N + i];
      if constexpr (B == sizeof(T)) {
        xpu_moe::host::store(p, elements, sizeof elements);
      } else {
        for (int v = 0; v < V; ++v) xpu_moe::host::store(p + v * B, &elements[v], B);
      }
    }
}
#undef XPU_MOE_LSC
#undef XPU_MOE_LSC_VECTOR

// ---- SLM, barrier, fence ----

inline void __esimd_slm_init(uint32_t bytes) { xpu_moe::host::declare_slm(bytes); }
inline void __esimd_barrier() { xpu_moe::host::barrier(); }
inline void __esimd_fence(uint8_t) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
