// What host and kernels agree on besides the argument lists: the bits of `flags`. abi.py is the same table in Python; a
// test compares the two. Argument lists stand at each kernel and in abi.py.
#pragma once

namespace xpu_moe::abi {

constexpr int S4 = 1 << 0;              // nibbles are two's complement; else unsigned with zero point 8
constexpr int IDS_64 = 1 << 1;          // topk_ids are int64; else int32
constexpr int SCALE_BF16 = 1 << 2;      // weight scales are bfloat16; else float16 (read by the bf16 kernels only)
constexpr int GATED = 1 << 3;           // w13 holds gate rows, then up rows; else one matrix of I rows
constexpr int RELU2 = 1 << 4;           // relu(v)^2; else SiLU
constexpr int RENORMALIZE = 1 << 5;     // route weights are divided by their sum
constexpr int WITH_LOGITS = 1 << 6;     // moe_u4_up decides the routing from `logits`, else it reads topk_ids
constexpr int WITH_BIAS = 1 << 7;       // the router has a bias. Bits, since a pointer compared with null aborts IGC 1.0.12504
constexpr int WEIGHTS_SHIFT = 8;        // two bits each: 0 float32, 1 float16, 2 bfloat16
constexpr int LOGITS_SHIFT = 10;
constexpr int BIAS_SHIFT = 12;

constexpr int MAX_TOP_K = 16;
constexpr int MAX_EXPERTS = 512;        // of the router; the MoE kernels alone have no limit

}  // namespace xpu_moe::abi
