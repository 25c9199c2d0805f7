"""NVIDIA: NCCL, CUDA and the switches of vLLM that matter there. On an XPU box these names have no effect."""

from __future__ import annotations

from xpu_moe.env.variable import Caution, Conflict, Variable

_C = ("cuda",)
_NCCL = "NCCL documentation, environment variables"
_ENVS = "vLLM source, vllm/envs.py"

VARIABLES = (
    Variable("CUDA_VISIBLE_DEVICES", "list", "Devices that CUDA shows.", "cuda", profiles={"default": "{cards}"},
             devices=_C, when={"default": "cards planned"}, source="CUDA documentation",
             why="fewer than tp x pp devices: the start fails; the same order in every worker"),
    Variable("CUDA_DEVICE_ORDER", "enum", "Order of the devices.", "cuda", "FASTEST_FIRST",
             ("FASTEST_FIRST", "PCI_BUS_ID"), {"default": "PCI_BUS_ID"}, _C, "stable numbers with mixed cards",
             "CUDA documentation"),
    Variable("CUDA_LAUNCH_BLOCKING", "bool", "Wait for every launch.", "cuda", "0", devices=_C,
             source="CUDA documentation", cautions=(Caution("1", "warn", "every launch waits: for debugging only"),)),
    Variable("NCCL_P2P_DISABLE", "bool", "No peer access.", "nccl", "0", profiles={"no-p2p": "1"}, devices=_C,
             source="NCCL troubleshooting guide",
             why="costs a lot on NVLink boxes; right on PCIe boxes whose IOMMU or ACS makes peer access hang",
             conflicts=(Conflict("1", "NCCL_P2P_LEVEL", "peer access is off: the level says nothing"),),
             cautions=(Caution("1", "warn", "costs a lot where cards are linked by NVLink"),)),
    Variable("NCCL_P2P_LEVEL", "enum", "Farthest link over which peers are used.", "nccl", None,
             ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS"), devices=_C, source=_NCCL, why="SYS forces it across CPUs",
             reads="text", cautions=(
                 Caution("SYS", "warn", "forces peer access across CPU sockets"),
                 Caution("LOC", "warn", "no peer access at all: costs a lot where cards are linked by NVLink"),
             )),
    Variable("NCCL_SHM_DISABLE", "bool", "No shared-memory transport.", "nccl", "0", devices=_C, source=_NCCL,
             why="it needs /dev/shm; without it is slow", cautions=(Caution("1", "warn", "slow"),)),
    Variable("NCCL_NVLS_ENABLE", "int", "NVLink SHARP multicast: 0, 1, 2 = auto.", "nccl", "2", ("0", "1", "2"),
             {"no-multicast": "0"}, _C,
             "0 where multicast cannot bind (fabric manager not up, container without IMEX, MIG, virtual machine): "
             "2.29 fails where 2.28 fell back",
             "NVIDIA/nccl issues", {"nccl": ">=2.17"},
             conflicts=(Conflict("1", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "multicast is off for one and forced on "
                                 "for the other"),)),
    Variable("NCCL_CUMEM_ENABLE", "bool", "Allocations through cuMem.", "nccl", "by version", devices=_C, source=_NCCL,
             profiles={"stable": "0"}, honoured={"nccl": ">=2.19"}, why="memory or container trouble; 0 with graphs "
             "in old vLLM"),
    Variable("NCCL_GRAPH_MIXING_SUPPORT", "bool", "Captured and other calls of a group may be under way together.",
             "nccl", "1", devices=_C, source=f"{_NCCL}; NCCL source, strongstream.cc",
             why="1 puts an event behind every captured call, which the next one waits for: some us; 0 is right only "
             "where a graph ends before the next graph or call of its group starts (bench collectives sets it)"),
    Variable("NCCL_SOCKET_IFNAME", "str", "Network interface.", "nccl", "any but lo and docker*", devices=_C,
             source=_NCCL, why="unset on one host; the loopback is not chosen by itself"),
    Variable("NCCL_IB_DISABLE", "bool", "No InfiniBand.", "nccl", "0", devices=_C, source=_NCCL),
    Variable("NCCL_NET", "str", "Network module.", "nccl", devices=_C, source=_NCCL),
    Variable("NCCL_ALGO", "str", "Forced algorithm.", "nccl", devices=_C, source=_NCCL,
             why="a forced algorithm loses NVLS and LL128",
             cautions=(Caution("*", "warn", "a forced algorithm loses NVLS and LL128"),)),
    Variable("NCCL_PROTO", "str", "Forced protocol.", "nccl", devices=_C, source=_NCCL,
             why="a forced protocol loses LL128", cautions=(Caution("*", "warn", "a forced protocol loses LL128"),)),
    Variable("NCCL_DEBUG", "enum", "NCCL's log level.", "nccl", None, ("VERSION", "WARN", "INFO", "TRACE"),
             {"probe": "INFO"}, _C, "prints version, algorithm and the variables that were read", _NCCL, reads="text"),
    Variable("NCCL_DEBUG_SUBSYS", "str", "Which parts of NCCL log.", "nccl", None, (), {"probe": "INIT,ENV"}, _C,
             "the parts that name version and variables; TUNING names the algorithm, at every call", _NCCL),
    Variable("TORCH_SYMM_MEM_DISABLE_MULTICAST", "bool", "No multicast in torch's symmetric memory.", "torch", "0",
             profiles={"no-multicast": "1"}, devices=_C, source="PyTorch source, CUDASymmetricMemory",
             honoured={"torch": ">=2.6"}, why="the same hardware cause as NCCL_NVLS_ENABLE=0", reads="torch-bool"),
    Variable("NVSHMEM_DISABLE_NVLS", "bool", "No multicast in NVSHMEM.", "cuda", "0", profiles={"no-multicast": "1"},
             devices=_C, source="NVSHMEM documentation, environment variables",
             why="the same hardware cause as NCCL_NVLS_ENABLE=0"),
    Variable("VLLM_ALLREDUCE_USE_SYMM_MEM", "bool", "All-reduce by symmetric memory.", "vllm", "1",
             profiles={"no-multicast": "0"}, devices=_C, source=_ENVS, why="0 where multicast is missing",
             conflicts=(Conflict("1", "TORCH_SYMM_MEM_DISABLE_MULTICAST=1", "it wants the multicast that is off"),)),
    Variable("VLLM_USE_DEEP_GEMM", "bool", "DeepGEMM for FP8 linears.", "vllm", "1", devices=_C,
             source="vllm-project/vllm issues", honoured={"vllm": ">=0.8"},
             why="0 on architectures other than sm_90 and sm_100: no recipe there, the first forward fails"),
    Variable("VLLM_MOE_USE_DEEP_GEMM", "bool", "DeepGEMM for the MoE.", "vllm", "1", devices=_C,
             source="vllm-project/recipes#120", why="0 for MiniMax FP8 on H20 and H100: slower or failing"),
    Variable("VLLM_USE_DEEP_GEMM_E8M0", "bool", "Format of DeepGEMM's scales.", "vllm", "1", devices=_C, source=_ENVS),
    Variable("VLLM_USE_FLASHINFER_MOE_FP8", "bool", "FlashInfer's FP8 MoE.", "vllm", devices=_C, source=_ENVS,
             why="CUDA only"),
    Variable("VLLM_FLASHINFER_MOE_BACKEND", "str", "FlashInfer's MoE backend.", "vllm", devices=_C, source=_ENVS,
             why="CUDA only"),
    Variable("VLLM_USE_FLASHINFER_SAMPLER", "bool", "FlashInfer's sampler.", "vllm", "1", devices=_C, source=_ENVS,
             why="CUDA only"),
    Variable("VLLM_SKIP_P2P_CHECK", "bool", "Trust the driver's report of peers.", "vllm", "1", devices=_C,
             source=_ENVS, reads="python-one"),
    Variable("VLLM_TEST_FORCE_FP8_MARLIN", "bool", "Weight-only FP8.", "vllm", "0", devices=_C, source=_ENVS,
             why="1 below sm_89 where needed"),
)  # fmt: skip
