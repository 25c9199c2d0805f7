"""The launch library: C++ that submits SPIR-V kernels to torch's queue. Importing this package loads nothing."""
