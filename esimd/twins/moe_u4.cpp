#include "moe_u4.hpp"

XM_MOE_TWINS(f16_g32, twin::F16, 32)
XM_MOE_TWINS(f16_g64, twin::F16, 64)
XM_MOE_TWINS(f16_g128, twin::F16, 128)
XM_MOE_TWINS(bf16_g32, twin::Bf16, 32)
XM_MOE_TWINS(bf16_g64, twin::Bf16, 64)
XM_MOE_TWINS(bf16_g128, twin::Bf16, 128)
