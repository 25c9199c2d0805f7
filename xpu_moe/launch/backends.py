"""The MoE backends by name, for `--backend` and XPU_MOE_BACKEND. Data: what offers them needs torch, and a wrong name
is to be told before anything is installed or loaded."""

from __future__ import annotations

import difflib

from xpu_moe.launch.errors import USAGE, LaunchError

# operators whose backends can be asked for by name, and their backends -> the device kinds that have them
OPS = ("moe_u4", "moe_fp8_block", "moe_fp8_tensor")
BACKENDS = {
    "esimd": ("xpu",),
    "sycl_twin": ("xpu",),
    "triton_grouped": ("xpu", "cuda"),
    "cuda_u4_decode": ("cuda",),
    "cuda_fp8_decode": ("cuda",),
    "flashinfer_cutlass": ("cuda",),
    "cpu_grouped": ("cpu",),
}


def backend(text: str) -> str:
    """A known name, or ValueError with the one that was meant. An empty text names none."""
    if text and text not in BACKENDS:
        near = difflib.get_close_matches(text.lower(), BACKENDS, n=1, cutoff=0.6)
        raise ValueError(f"wanted one of {', '.join(BACKENDS)}" + (f"; did you mean {near[0]}?" if near else ""))
    return text


def check_device(name: str, where: str, device: str) -> None:
    """LaunchError(USAGE) where the backend `name`, given by `where`, is one of other devices."""
    kinds = BACKENDS.get(name, ())
    if name and device not in kinds:
        here = ", ".join(known for known, kinds in BACKENDS.items() if device in kinds)
        raise LaunchError(
            USAGE,
            f"{where}={name!r}: is a backend for {' and '.join(kinds)}, this launch is for {device}; wanted {here}",
        )
