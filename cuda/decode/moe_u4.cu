#include "u4.cuh"
#include "kernel.cuh"
