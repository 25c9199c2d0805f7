"""FlashInfer's variables that we read."""

from __future__ import annotations

from xpu_moe.env.variable import Variable

VARIABLES = (
    Variable(
        "FLASHINFER_DISABLE_JIT", "bool", "FlashInfer raises instead of compiling a module that is not prebuilt.",
        "vllm", "0", devices=("cuda",), why="a serving machine without nvcc must not find out in a call",
        source="FlashInfer 0.6.13 jit/core.py",
    ),
)  # fmt: skip
