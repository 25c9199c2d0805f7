"""Benchmarks: kernels against rivals and the memory floor, with a correctness check in the same run."""
