"""OpenCL's loader: where the CPU device, which the SIMT twins are tested on, is found."""

from __future__ import annotations

from xpu_moe.env.variable import Variable

VARIABLES = (
    Variable(
        "OCL_ICD_FILENAMES", "path", "OpenCL drivers to load besides those in /etc/OpenCL/vendors.", "system",
        why="The .icd file in the wheel intel-opencl-rt holds a placeholder path: without this no CPU device is seen.",
        source="OpenCL ICD loader of intel-opencl-rt 2026.1.2, seen",
    ),
)  # fmt: skip
