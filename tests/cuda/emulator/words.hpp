// The words of CUDA C++ that the kernels use, for a host compiler. Included before an emulated kernel.
#pragma once
#include <cmath>
#include <cstring>
#include <utility>

#include "machine.hpp"

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__
#define __CUDA_ARCH__ 900

#define threadIdx (machine::thread_index())
#define blockIdx (machine::block_index())
#define blockDim (machine::block_size())
#define gridDim (machine::grid_size())

template <class T>
constexpr T max(T a, T b) { return a < b ? b : a; }
template <class T>
constexpr T min(T a, T b) { return b < a ? b : a; }

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

// ---- bits
template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float v) { return bits_as<unsigned>(v); }
inline int __float_as_int(float v) { return bits_as<int>(v); }
inline float __uint_as_float(unsigned v) { return bits_as<float>(v); }
inline float __int_as_float(int v) { return bits_as<float>(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }

// ---- arithmetic
// CUDA's guide: 0 where the divisor is above 2^126 (and finite), NaN where it is infinite and the dividend is too.
inline float __fdividef(float a, float b) {
    const float size = std::fabs(b);
    return size > 0x1p126f && std::isfinite(b) ? 0.f * a : a / b;
}
inline float __frcp_rn(float v) { return 1.f / v; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float rsqrtf(float v) { return 1.f / std::sqrt(v); }

// ---- warps. Every collective here wants all 32 lanes.
namespace words {
inline void whole(unsigned mask) {
    if (mask != ~0u) machine::fail("a collective of a part of the warp (mask %08x): not emulated", mask);
}
template <class T>
inline T shuffle(const char* name, T value, unsigned from, machine::Combine combine) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    machine::u32 in[3] = {0, 0, from}, out[2];
    std::memcpy(in, &value, sizeof value);
    machine::collective(name, in, 3, combine, out, 2);
    std::memcpy(&value, out, sizeof value);
    return value;
}
// `source(lane, number)`: the lane whose value comes to `lane`.
template <class Source>
inline void pick(const machine::Words& in, machine::Words& out, Source source) {
    for (int lane = 0; lane < 32; ++lane) {
        const int from = source(lane, (int)in[lane][2]);
        out[lane][0] = in[from][0], out[lane][1] = in[from][1];
    }
}
inline unsigned ballot(bool yes) {
    const machine::u32 in = yes;
    machine::u32 out;
    const auto vote = [](const machine::Words& in, machine::Words& out) {
        unsigned all = 0;
        for (int lane = 0; lane < 32; ++lane) all |= in[lane][0] << lane;
        for (int lane = 0; lane < 32; ++lane) out[lane][0] = all;
    };
    machine::collective("vote", &in, 1, vote, &out, 1);
    return out;
}
}  // namespace words

#define SHUFFLE(NAME, SAID, FROM)                                                                          \
    template <class T>                                                                                     \
    inline T NAME(unsigned mask, T value, int by) {                                                        \
        words::whole(mask);                                                                                \
        return words::shuffle(SAID, value, by, [](const machine::Words& in, machine::Words& out) {         \
            words::pick(in, out, [](int lane, int by) { return FROM; });                                   \
        });                                                                                                \
    }
SHUFFLE(__shfl_sync, "shfl", ((void)lane, by & 31))
SHUFFLE(__shfl_xor_sync, "shfl.xor", (lane ^ by) & 31)
SHUFFLE(__shfl_up_sync, "shfl.up", lane >= by ? lane - by : lane)
SHUFFLE(__shfl_down_sync, "shfl.down", lane + by < 32 ? lane + by : lane)
#undef SHUFFLE
inline unsigned __ballot_sync(unsigned mask, bool yes) { return words::whole(mask), words::ballot(yes); }
inline int __any_sync(unsigned mask, bool yes) { return words::whole(mask), words::ballot(yes) != 0; }
inline int __all_sync(unsigned mask, bool yes) { return words::whole(mask), words::ballot(yes) == ~0u; }
namespace words {
template <bool GREATEST, class T>
inline T best(unsigned mask, T value) {
    whole(mask);
    machine::u32 in = bits_as<machine::u32>(value), out;
    const auto combine = [](const machine::Words& in, machine::Words& out) {
        T found = bits_as<T>(in[0][0]);
        for (int lane = 1; lane < 32; ++lane)
            found = GREATEST ? max(found, bits_as<T>(in[lane][0])) : min(found, bits_as<T>(in[lane][0]));
        for (int lane = 0; lane < 32; ++lane) out[lane][0] = bits_as<machine::u32>(found);
    };
    machine::collective("redux", &in, 1, combine, &out, 1);
    return bits_as<T>(out);
}
}  // namespace words
template <class T>
inline T __reduce_max_sync(unsigned mask, T value) { return words::best<true>(mask, value); }
template <class T>
inline T __reduce_min_sync(unsigned mask, T value) { return words::best<false>(mask, value); }
inline void __syncwarp(unsigned mask = ~0u) { words::whole(mask), machine::sync_warp(); }
inline void __syncthreads() { machine::named_barrier(0, 0, true); }

// ---- the rest
template <class T>
inline T atomicAdd(T* at, T by) {
    T before;
    machine::atomic(at, &by, &before, sizeof(T), machine::Atomic::add);
    return before;
}
template <class T>
inline T atomicOr(T* at, T by) {
    T before;
    machine::atomic(at, &by, &before, sizeof(T), machine::Atomic::bit_or);
    return before;
}
inline void __nanosleep(unsigned) { machine::pause(); }
inline long long clock64() { return (long long)machine::clock(); }
inline void __threadfence() { machine::fence(); }
inline void __threadfence_system() { machine::fence(); }

// ---- calling a kernel with its parameters in slots of 8 bytes, as the driver's packed buffer has them
namespace words {
template <class T>
T from_slots(const machine::u64* slots) {
    T value;
    std::memcpy(&value, slots, sizeof value);
    return value;
}
template <class... A, size_t... I>
void call(void (*kernel)(A...), const machine::u64* slots, std::index_sequence<I...>) {
    constexpr size_t sizes[] = {(sizeof(A) + 7) / 8 ...};
    size_t at[sizeof...(A)] = {};
    for (size_t i = 1; i < sizeof...(A); ++i) at[i] = at[i - 1] + sizes[i - 1];
    kernel(from_slots<A>(slots + at[I])...);
}
template <class... A>
void call(void (*kernel)(A...), const machine::u64* slots) {
    call(kernel, slots, std::index_sequence_for<A...>{});
}
}  // namespace words
