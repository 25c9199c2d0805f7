#include "u4_few.cuh"
#include "kernel.cuh"
