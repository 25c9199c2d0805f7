// The instructions of cuda/ptx.cuh on the emulated machine: the same names, parameters and results.
#pragma once
#include "numbers.hpp"
#include "words.hpp"

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static inline
#define DEVICE_MEMBER inline

constexpr u32 ALL = 0xffffffffu;

DEVICE void trap() { machine::fail("trap"); }

struct Spin {
    void once() { machine::pause(); }
};
DEVICE u32 kept(u32 value) { return value; }
DEVICE u32 multiprocessor() { return machine::multiprocessor(); }
DEVICE u64 nanoseconds() { return machine::clock(); }
DEVICE u32 shared_address(const void* pointer) { return machine::shared_address(pointer); }

// ---- barriers
DEVICE void barrier_init(u32 barrier, u32 count) { machine::barrier_init(barrier, count); }
DEVICE void barrier_expect(u32 barrier, u32 bytes) { machine::barrier_arrive(barrier, bytes); }
DEVICE void barrier_arrive(u32 barrier) { machine::barrier_arrive(barrier, 0); }
DEVICE bool barrier_try(u32 barrier, u32 parity) { return machine::barrier_passed(barrier, parity); }
DEVICE void barrier_wait(u32 barrier, u32 parity) { machine::barrier_wait(barrier, parity); }
DEVICE void fence_barrier_init() { machine::barrier_fence(); }
template <int ID, int COUNT>
DEVICE void named_sync() { machine::named_barrier(ID, COUNT, true); }
template <int ID, int COUNT>
DEVICE void named_arrive() { machine::named_barrier(ID, COUNT, false); }
DEVICE void wait_for_predecessor() { machine::wait_for_predecessor(); }
DEVICE void let_successor_start() { machine::let_successor_start(); }

// ---- copies, loads, stores
DEVICE u64 streaming_policy() { return 0; }
DEVICE void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier, u64) { machine::bulk_copy(to, from, bytes, barrier); }
template <class T>
DEVICE T from_shared(u32 address) {
    T v;
    machine::load_shared(address, &v, sizeof v);
    return v;
}
DEVICE uint4 load_global(const void* pointer) {
    uint4 v;
    machine::load_global(pointer, &v, 16);
    return v;
}
DEVICE uint4 load_relaxed(const void* pointer) {
    uint4 v;
    machine::load_single(pointer, &v, 16);
    return v;
}
DEVICE void store_relaxed(void* pointer, uint4 v) { machine::store_single(pointer, &v, 16); }
DEVICE u64 load_volatile_u64(const void* pointer) {
    u64 v;
    machine::load_words(pointer, &v, 8);
    return v;
}
DEVICE uint2 load_volatile_pair(const void* pointer) {
    uint2 v;
    machine::load_words(pointer, &v, 8);
    return v;
}
DEVICE uint4 load_volatile(const void* pointer) {
    uint4 v;
    machine::load_words(pointer, &v, 16);
    return v;
}
DEVICE void store_volatile(void* pointer, uint2 v) { machine::store_words(pointer, &v, 8); }
DEVICE void store_volatile(void* pointer, uint4 v) { machine::store_words(pointer, &v, 16); }
DEVICE void add_relaxed(void* pointer, u64 by) {
    u64 before;
    machine::atomic(pointer, &by, &before, 8, machine::Atomic::add);
}
DEVICE void load_four(const float* from, float* to) { machine::load_global(from, to, 16); }
DEVICE uint4 load_shared(u32 address) { return from_shared<uint4>(address); }
DEVICE float load_shared_float(u32 address) { return from_shared<float>(address); }
DEVICE float load_shared_scale(u32 address) { return from_shared<float>(address); }
DEVICE u16 load_shared_scale16(u32 address) { return from_shared<u16>(address); }
DEVICE void store_shared(u32 address, uint4 v) { machine::store_shared(address, &v, 16); }
DEVICE void store_shared_pair(u32 address, u32 low, u32 high) {
    const u32 v[2] = {low, high};
    machine::store_shared(address, v, 8);
}
DEVICE void store_shared_float(u32 address, float value) { machine::store_shared(address, &value, 4); }
template <class T>
DEVICE void store_any(T* at, T value) { machine::store_any(at, &value, sizeof value); }
DEVICE void prefetch_l1(const void* pointer) { machine::prefetch(pointer); }
DEVICE void prefetch_l2(const void* pointer) { machine::prefetch(pointer); }

// ---- bits
template <u32 MASK>
DEVICE u32 and_or(u32 a, u32 bits) { return (a & MASK) | bits; }
DEVICE u32 greater_halves(u32 a, u32 b) {
    return max(a & 0xFFFFu, b & 0xFFFFu) | max(a >> 16, b >> 16) << 16;
}
DEVICE u32 permute(u32 a, u32 b, u32 order) {
    const u64 bytes = (u64)b << 32 | a;
    u32 d = 0;
    for (int i = 0; i < 4; ++i) d |= (u32)(bytes >> (order >> (4 * i) & 7) * 8 & 0xFF) << (8 * i);
    return d;
}

// ---- conversions
DEVICE u32 bf16_pair(float low, float high) { return numbers::bf16_of(low) | (u32)numbers::bf16_of(high) << 16; }
DEVICE u32 half_pair(float low, float high) { return numbers::half_of(low) | (u32)numbers::half_of(high) << 16; }
DEVICE u16 bf16_of(float v) { return numbers::bf16_of(v); }
DEVICE u16 half_of(float v) { return numbers::half_of(v); }
DEVICE float float_of_bf16(u16 v) { return numbers::float_of_bf16(v); }
DEVICE float float_of_half(u16 v) { return numbers::float_of_half(v); }
DEVICE u32 multiply_bf16(u32 a, u32 b) {
    return bf16_pair(float_of_bf16((u16)a) * float_of_bf16((u16)b), float_of_bf16(a >> 16) * float_of_bf16(b >> 16));
}
DEVICE u32 half_of_e4m3(u32 v, int upper) {
    const u32 pair = upper ? v >> 16 : v;
    return half_pair(numbers::float_of_e4m3((u8)pair), numbers::float_of_e4m3((u8)(pair >> 8)));
}
DEVICE u16 e4m3_pair(float low, float high) { return numbers::e4m3_of(low) | numbers::e4m3_of(high) << 8; }
DEVICE void floats_of_bf16(u32 pair, float& low, float& high) { low = float_of_bf16((u16)pair), high = float_of_bf16(pair >> 16); }
DEVICE void floats_of_half(u32 pair, float& low, float& high) { low = float_of_half((u16)pair), high = float_of_half(pair >> 16); }

// ---- arithmetic
DEVICE float exp2_about(float v) {
    const float r = std::exp2(v);
    return r < 1.17549435e-38f ? 0.f : r;
}
// Any of the numbers that lie within a unit of the last place of 1 / d.
DEVICE float reciprocal_about(float d) {
    if (std::fabs(d) < 0x1p-126f) d = std::copysign(0.f, d);
    const float r = 1.f / d;
    if (std::fabs(r) < 0x1p-126f) return std::copysign(0.f, r);
    if (!std::isfinite(r) || machine::draw(2)) return r;
    const double exact = 1.0 / std::fabs((double)d), size = std::fabs(r);
    const bool up = exact == size ? machine::draw(2) : exact > size;
    return numbers::value(numbers::bits(r) + (up ? 1 : -1));
}

// ---- tensor cores
template <class T>
DEVICE void product(const char* name, T (&c)[4], const u32 (&ab)[6], machine::Combine multiply) {
    u32 in[10], out[4];
    std::memcpy(in, ab, sizeof ab), std::memcpy(in + 6, c, sizeof c);
    machine::collective(name, in, 10, multiply, out, 4);
    std::memcpy(c, out, sizeof c);
}
DEVICE void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    product("mma.bf16", c, {a0, a1, a2, a3, b0, b1}, machine::mma_bf16);
}
DEVICE void mma_half(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    product("mma.f16", c, {a0, a1, a2, a3, b0, b1}, machine::mma_half);
}
DEVICE void mma_u8s8(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    product("mma.u8.s8", c, {a0, a1, a2, a3, b0, b1}, machine::mma_u8s8);
}
