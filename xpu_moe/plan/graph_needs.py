"""What graphs on XPU need: a table that the doctor and the graph policy share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Need:
    """A `component` whose version lies in `ranges` refuses (`error`) or puts in doubt (`warn`) a plan with graphs.

    `several`: only with several cards. `int4_moe`: only with 4-bit experts. `torch`: only with such a torch.
    """

    component: str
    ranges: str
    severity: Literal["error", "warn"]
    says: str
    source: str
    several: bool = False
    int4_moe: bool = False
    torch: str = ""


NEEDS: tuple[Need, ...] = (
    Need("oneccl", "<2022.0", "error", "capture of XCCL collectives needs oneCCL 2022.0 or later",
         "intel/torch-xpu-ops#3570", several=True),
    Need("vllm", "<0.26", "error", "0.21 switches graphs off with several cards, older ones assert a CUDA communicator",
         "vLLM platforms/xpu.py; B70 u4 decode note", several=True),
    Need("vllm", "<0.17", "error", "this vLLM has no XPU graphs", "vLLM platforms/xpu.py"),
    Need("torch", "<2.11", "error", "XPU graphs need torch 2.11 or later", "vLLM 0.26 platforms/xpu.py"),
    Need("vllm", ">=0.31", "warn", "crashes in capture with several cards are open; set cudagraph_mode explicitly",
         "vllm-project/vllm#58388, #60379, #56917", several=True),
    Need("xpu-kernels", "<0.1.15", "warn", "an atomic counter of the INT4 MoE was not zeroed on replay: wrong tokens",
         "vllm-project/vllm-xpu-kernels#586, #524", int4_moe=True),
    Need("compute-runtime", "<26.27", "error", "torch 2.14 records by Level Zero: compute-runtime 26.27 or later",
         "B70 field notes 10", torch=">=2.14"),
    Need("loader", "<1.32", "error", "torch 2.14 records by Level Zero: loader 1.32 or later", "B70 field notes 10",
         torch=">=2.14"),
    Need("oneapi", "<2026.1.1", "error", "torch 2.14 graphs need oneAPI 2026.1.1", "B70 field notes 10",
         torch=">=2.14"),
    Need("oneccl", "<2022.1.2", "error", "torch 2.14 graphs need oneCCL 2022.1.2", "B70 field notes 10", several=True,
         torch=">=2.14"),
)  # fmt: skip
