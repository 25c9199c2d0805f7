#include "fp8_block.cuh"
#include "kernel.cuh"
