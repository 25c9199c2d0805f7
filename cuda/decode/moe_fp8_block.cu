#if MAX_M == 1
#include "fp8_one.cuh"
#include "one_token.cuh"
#else
#include "fp8_block.cuh"
#include "kernel.cuh"
#endif
