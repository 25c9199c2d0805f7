// What a launch reads first: its routes.
#pragma once
#include "shape.cuh"

// -1: out of range.
DEVICE int route_id(const Arguments& p, int i) {
    const long long id = ID_64 ? ((const long long*)p.ids)[i] : ((const int*)p.ids)[i];
    return id >= 0 && id < E ? (int)id : -1;
}
DEVICE float route_weight(const Arguments& p, int i) {
    if (ROUTE_WEIGHT == 2) return ((const float*)p.weights)[i];
    const u16 v = ((const u16*)p.weights)[i];
    return ROUTE_WEIGHT == 1 ? float_of_half(v) : float_of_bf16(v);
}

// Routes, activations and state, on their way into L2 while the launch before is still at work; from every block, since the
// translations of the addresses are kept by each multiprocessor.
DEVICE void prefetch_inputs(const Arguments& p, int lane) {
    const u32 ids = p.tokens * TOP_K * (ID_64 ? 8 : 4), weights = p.tokens * TOP_K * (ROUTE_WEIGHT == 2 ? 4 : 2);
    for (u32 at = lane * 128; at < ids; at += 32 * 128) prefetch_l2((const u8*)p.ids + at);
    for (u32 at = lane * 128; at < weights; at += 32 * 128) prefetch_l2((const u8*)p.weights + at);
    if (lane == 0) prefetch_l2(p.state), prefetch_l2(p.x);
}
