#include "fp8_block.cuh"
#if MAX_M == 1
#include "one_token.cuh"
#else
#include "kernel.cuh"
#endif
