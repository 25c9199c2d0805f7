// What stands between W13 and W2.
#pragma once
#include "shape.cuh"

DEVICE float activate(float gate, float up) {
    if (RELU2) {
        const float r = gate < 0.f ? 0.f : gate;  // a NaN stays one
        return GATED ? r * r * up : r * r;
    }
    const float v = __fdividef(gate, 1.f + exp2_about(-1.4426950408889634f * gate));
    return GATED ? v * up : v;
}
