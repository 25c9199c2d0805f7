#if MAX_M == 1
#include "u4_one.cuh"
#include "one_token.cuh"
#else
#include "u4_few.cuh"
#include "kernel.cuh"
#endif
