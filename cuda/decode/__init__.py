"""The decode kernels: a whole MoE layer for a few tokens in one launch. See kernel.cuh and docs/cuda.md."""
