// Small floating-point types, bit by bit, as sm_90 converts them: to the nearest, ties to even; a NaN is 0x7FFF.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace numbers {

inline uint32_t bits(float v) {
    uint32_t u;
    std::memcpy(&u, &v, 4);
    return u;
}
inline float value(uint32_t u) {
    float v;
    std::memcpy(&v, &u, 4);
    return v;
}
inline uint16_t bf16_of(float v) {
    if (std::isnan(v)) return 0x7FFF;
    const uint32_t u = bits(v);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
inline float float_of_bf16(uint16_t v) { return value((uint32_t)v << 16); }

inline uint16_t half_of(float v) {
    if (std::isnan(v)) return 0x7FFF;
    const uint16_t sign = (uint16_t)(bits(v) >> 16 & 0x8000);
    const float size = std::fabs(v);
    if (size >= 65520.f) return sign | 0x7C00;  // half of the last step above the largest, 65504
    if (size < 0x1p-14f) return sign | (uint16_t)std::nearbyint(size * 0x1p24f);  // subnormal: steps of 2^-24
    const uint32_t u = bits(size);
    return sign | (uint16_t)((u + 0xFFF + (u >> 13 & 1) - (112u << 23)) >> 13);
}
inline float float_of_half(uint16_t v) {
    const uint32_t sign = (uint32_t)(v & 0x8000) << 16, exponent = v >> 10 & 31, mantissa = v & 0x3FF;
    if (exponent == 31) return value(sign | 0x7F800000 | mantissa << 13);
    const float size = exponent ? std::ldexp((float)(1024 + mantissa), (int)exponent - 25) : std::ldexp((float)mantissa, -24);
    return sign ? -size : size;
}
inline float float_of_e4m3(uint8_t v) {
    const int exponent = v >> 3 & 15, mantissa = v & 7;
    if (exponent == 15 && mantissa == 7) return value(0x7FFFFFFF);
    const float size = exponent ? std::ldexp((float)(8 + mantissa), exponent - 10) : std::ldexp((float)mantissa, -9);
    return v & 0x80 ? -size : size;
}

inline uint8_t e4m3_of(float v) {  // beyond the largest, 448, it stays there
    if (std::isnan(v)) return 0x7F;
    const uint8_t sign = std::signbit(v) ? 0x80 : 0;
    const float size = std::fabs(v);
    if (size >= 448.f) return sign | 0x7E;
    if (size < 0x1p-6f) return sign | (uint8_t)std::nearbyint(size * 0x1p9f);  // subnormal: steps of 2^-9
    const uint32_t u = bits(size);
    return sign | (uint8_t)((u + 0x7FFFF + (u >> 20 & 1) - (120u << 23)) >> 20);
}

}  // namespace numbers
