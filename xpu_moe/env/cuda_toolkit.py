"""Where CUDA's compiler and headers are looked for."""

from __future__ import annotations

from xpu_moe.env.variable import Variable

VARIABLES = (
    Variable(
        "CUDA_HOME", "path", "Root of a CUDA toolkit, for nvcc and headers; torch's own NVRTC is used first.", "system",
        devices=("cuda",), source="NVIDIA CUDA installation guide",
    ),
)  # fmt: skip
