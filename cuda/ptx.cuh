// Every instruction of the kernels that CUDA C++ has no word for, written once. No CUDA header is needed to compile this.
// tests/cuda/emulator/ptx.cuh has the same names for a CPU.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__

constexpr u32 ALL = 0xffffffffu;  // the lanes of a warp

DEVICE void trap() { asm volatile("trap;"); }  // an error at the host's next call

// A spin that lasts longer than this many clocks (about 5 s) ends in a trap: an error at the next call, not a hang.
constexpr long long SPIN_LIMIT = 10000000000LL;

struct Spin {
    long long start = 0;
    DEVICE_MEMBER void once() {
        const long long now = clock64();
        if (start == 0) start = now;
        if (now - start > SPIN_LIMIT) trap();
    }
};

// A value that the compiler keeps in its register instead of computing it again at every use.
DEVICE u32 kept(u32 value) {
    u32 v;
    asm volatile("mov.u32 %0, %1;" : "=r"(v) : "r"(value));
    return v;
}

DEVICE u32 multiprocessor() {  // its number
    u32 v;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(v));
    return v;
}

DEVICE u64 nanoseconds() {
    u64 v;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
    return v;
}

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// ---- barriers in shared memory (mbarrier)
DEVICE void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE bool barrier_try(u32 barrier, u32 parity) {
    u32 done;
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}
// Out of line: the loops that wait stay small.
static __device__ __noinline__ void barrier_wait_long(u32 barrier, u32 parity) {
    Spin spin;
    while (!barrier_try(barrier, parity)) spin.once();
}
DEVICE void barrier_wait(u32 barrier, u32 parity) {
    if (!barrier_try(barrier, parity)) barrier_wait_long(barrier, parity);
}
// Makes fresh barriers known to the copy engine.
DEVICE void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- named barriers: number ID, of which COUNT threads arrive in all
template <int ID, int COUNT>
DEVICE void named_sync() {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(COUNT) : "memory");
}
template <int ID, int COUNT>
DEVICE void named_arrive() {
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(COUNT) : "memory");
}

// ---- programmatic dependent launch: both are empty where the launch did not ask for it, and before sm_90
#if __CUDA_ARCH__ >= 900
DEVICE void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void let_successor_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
DEVICE void wait_for_predecessor() {}
DEVICE void let_successor_start() {}
#endif

// ---- bulk asynchronous copy, global -> shared; sizes and addresses are multiples of 16 bytes
// Weights are read once: they leave L2 first.
DEVICE u64 streaming_policy() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
DEVICE void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
}

// ---- loads and stores
DEVICE uint4 load_global(const void* pointer) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(pointer));
    return v;
}
// Volatile, so that several loads are under way before the first value is used: the compiler would move one behind a
// branch, and its latency with it.
DEVICE void load_four(const float* from, float* to) {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "l"(from));
}
// What other devices write and read: the words arrive one by one, in any order.
DEVICE u64 load_volatile_u64(const void* pointer) {
    u64 v;
    asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(v) : "l"(pointer));
    return v;
}
DEVICE uint2 load_volatile_pair(const void* pointer) {
    uint2 v;
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(pointer) : "memory");
    return v;
}
DEVICE uint4 load_volatile(const void* pointer) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(pointer)
                 : "memory");
    return v;
}
DEVICE void store_volatile(void* pointer, uint2 v) {
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(pointer), "r"(v.x), "r"(v.y) : "memory");
}
DEVICE void store_volatile(void* pointer, uint4 v) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
DEVICE void add_relaxed(void* pointer, u64 by) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(pointer), "l"(by) : "memory");
}
DEVICE uint4 load_shared(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
// 16 bytes that pass from one multiprocessor to another as one value (PTX calls only the b128 forms single-copy atomic).
DEVICE uint4 load_relaxed(const void* pointer) {
    u64 low, high;
    asm volatile("{ .reg .b128 v; ld.relaxed.gpu.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(low), "=l"(high)
                 : "l"(pointer)
                 : "memory");
    return make_uint4((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
}
DEVICE void store_relaxed(void* pointer, uint4 v) {
    const u64 low = (u64)v.y << 32 | v.x, high = (u64)v.w << 32 | v.z;
    asm volatile("{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.gpu.global.b128 [%0], v; }" ::"l"(pointer), "l"(low), "l"(high)
                 : "memory");
}
DEVICE void store_shared(u32 address, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEVICE void store_shared_pair(u32 address, u32 low, u32 high) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(low), "r"(high) : "memory");
}
DEVICE void store_shared_float(u32 address, float value) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
DEVICE float load_shared_float(u32 address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}
// Scales of a stage that has been waited for. (No "memory": the compiler may keep other loads in flight across these.)
DEVICE float load_shared_scale(u32 address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address));
    return v;
}
DEVICE u16 load_shared_scale16(u32 address) {
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
    return v;
}
// Several lanes may store there at once: one of their values stays.
template <class T>
DEVICE void store_any(T* at, T value) { *at = value; }
DEVICE void prefetch_l1(const void* pointer) { asm volatile("prefetch.global.L1 [%0];" ::"l"(pointer)); }
// A later write by anybody is seen in L2: allowed before the predecessor's results are waited for.
DEVICE void prefetch_l2(const void* pointer) { asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer)); }

// ---- bits
// (a & MASK) | bits in one instruction; left to itself the compiler makes two of it.
template <u32 MASK>
DEVICE u32 and_or(u32 a, u32 bits) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "n"(MASK), "r"(bits));
    return d;
}
// Of both 16-bit halves the greater, as unsigned integers.
DEVICE u32 greater_halves(u32 a, u32 b) {
    u32 d;
    asm("max.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
// Nibble i of `order` says which of the 8 bytes (a: 0 to 3, b: 4 to 7) becomes byte i.
DEVICE u32 permute(u32 a, u32 b, u32 order) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(order));
    return d;
}

// ---- conversions; of a pair, `low` goes into the lower half
DEVICE u32 bf16_pair(float low, float high) {
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
DEVICE u32 half_pair(float low, float high) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
DEVICE u32 multiply_bf16(u32 a, u32 b) {  // of both halves
    u32 d;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
DEVICE u16 bf16_of(float v) { return (u16)bf16_pair(v, 0.f); }
DEVICE u16 half_of(float v) {
    u16 d;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d) : "f"(v));
    return d;
}
// To the nearest, beyond 448 (and for an infinity) 448, a NaN 0x7f. From sm_89 on.
DEVICE u16 e4m3_pair(float low, float high) {
    u16 d;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(high), "f"(low));
    return d;
}
DEVICE float float_of_bf16(u16 v) { return __uint_as_float((u32)v << 16); }
DEVICE float float_of_half(u16 v) {
    float d;
    asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(v));
    return d;
}
// The two values of a pair.
DEVICE void floats_of_bf16(u32 pair, float& low, float& high) {
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xffff0000u);
}
DEVICE void floats_of_half(u32 pair, float& low, float& high) {
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(low), "=f"(high)
        : "r"(pair));
}

// ---- arithmetic
// 2^v within two units of the last place; subnormals are zeros.
DEVICE float exp2_about(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}
// 1 / d within one unit of the last place; subnormals are zeros.
DEVICE float reciprocal_about(float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return r;
}

// ---- tensor cores. Lane = 4g + t. A: a0 (row g, k 2t..), a1 (row g + 8), a2 (row g, k 8 + 2t..), a3 (row g + 8);
// B: column g, b0 (k 2t..), b1 (k 8 + 2t..); C: c0, c1 (row g, columns 2t, 2t + 1), c2, c3 (row g + 8).
DEVICE void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEVICE void mma_half(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// 8-bit operands: k is counted in fours (a0: k 4t..4t+3, a2: k 16 + 4t..). Here A has no sign, B has one.
DEVICE void mma_u8s8(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// Two e4m3 values (the lower, the upper half of v) -> fp16, in order.
DEVICE u32 half_of_e4m3(u32 v, int upper) {
    u32 d;
    if (upper) asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h; }" : "=r"(d) : "r"(v));
    else asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, l; }" : "=r"(d) : "r"(v));
    return d;
}
