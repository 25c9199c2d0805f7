"""torch.distributed, XCCL and the allocator: who is who, and how a hang shows."""

from __future__ import annotations

from xpu_moe.env.variable import Caution, Conflict, Variable

_RUN = "torch.distributed.run documentation: environment variables"
_X = ("xpu",)
_XCCL = "intel/torch-xpu-ops source, ProcessGroupXCCL"
_SINCE = {"torch": ">=2.8"}


def _allocator(name: str) -> Variable:
    mixes = "expandable segments do not mix with IPC handles and graph pools on XPU"
    return Variable(
        name, "str", "Allocator settings, such as expandable_segments:True.", "torch",
        devices=("xpu", "cuda") if name == "PYTORCH_ALLOC_CONF" else _X, why=mixes,
        source="PyTorch documentation, memory management; version dependent",
        conflicts=(Conflict("~expandable_segments:True", "VLLM_XPU_ENABLE_XPU_GRAPH=1", mixes),),
    )  # fmt: skip


VARIABLES = (
    Variable("RANK", "int", "This process's rank in the whole job; set by torchrun.", "torch", source=_RUN,
             reads="python-int"),
    Variable("WORLD_SIZE", "int", "Number of ranks of the whole job; set by torchrun.", "torch", source=_RUN,
             reads="python-int"),
    Variable("LOCAL_RANK", "int", "This process's rank on its host; set by torchrun.", "torch", source=_RUN),
    Variable("LOCAL_WORLD_SIZE", "int", "Ranks on this host; set by torchrun.", "torch", source=_RUN),
    Variable("MASTER_ADDR", "str", "Host of the rendezvous store; set by torchrun.", "torch", source=_RUN),
    Variable("MASTER_PORT", "int", "Port of the rendezvous store; set by torchrun.", "torch", source=_RUN,
             reads="python-int"),
    Variable("TORCH_XCCL_BLOCKING_WAIT", "bool", "wait() blocks the host.", "torch", "0", profiles={"probe": "1"},
             devices=_X, why="turns a silent hang into a timeout", source=_XCCL, honoured=_SINCE, reads="torch-bool",
             conflicts=(Conflict("1", "VLLM_XPU_ENABLE_XPU_GRAPH=1", "a blocked host cannot capture"),)),
    Variable("TORCH_XCCL_XPU_EVENT_CACHE", "bool", "Use events again.", "torch", "1", devices=_X, source=_XCCL,
             honoured=_SINCE, reads="torch-bool"),
    Variable("TORCH_XCCL_ENABLE_TIMING", "bool", "Time every collective.", "torch", "0", devices=_X, source=_XCCL,
             honoured=_SINCE, reads="torch-bool"),
    Variable("TORCH_XCCL_NAN_CHECK", "bool", "Check inputs for NaN.", "torch", "0", profiles={"probe": "1"},
             devices=_X, source=_XCCL, honoured=_SINCE, reads="torch-bool",
             why="synchronises and cannot be captured; the all-reduce probe, which times and captures, checks its data "
             "itself and leaves this off",
             cautions=(Caution("1", "warn", "synchronises at every collective: for probes only"),),
             conflicts=(Conflict("1", "VLLM_XPU_ENABLE_XPU_GRAPH=1", "it synchronises: not capturable"),)),
    Variable("TORCH_XCCL_HIGH_PRIORITY", "bool", "High stream priority.", "torch", "0", devices=_X, source=_XCCL,
             honoured=_SINCE, reads="torch-bool"),
    Variable("TORCH_XCCL_COORD_CHECK_MILSEC", "int", "Period of the watchdog, ms.", "torch", "1000", devices=_X,
             source=_XCCL, honoured=_SINCE),
    Variable("TORCH_FR_BUFFER_SIZE", "int", "Entries of the flight recorder.", "torch", "2000",
             devices=("xpu", "cuda"), why="on a hang: the last collective of every rank", source=_XCCL,
             honoured=_SINCE),
    Variable("TORCH_LLM_ALLREDUCE", "bool", "The fused path of the retired torch-ccl; it needed Xe-Link.", "torch-ccl",
             "0", devices=_X, source="intel/torch-ccl", only_in="torch-ccl (retired)",
             why="XCCL does not read it", instead="oneCCL's SYCL kernels, on by default"),
    _allocator("PYTORCH_ALLOC_CONF"),
    _allocator("PYTORCH_XPU_ALLOC_CONF"),
    Variable("PYTORCH_ENABLE_XPU_FALLBACK", "bool", "Run missing operators on the CPU.", "torch", "0", devices=_X,
             why="hides a slow path", source="PyTorch documentation, XPU", reads="torch-bool",
             cautions=(Caution("1", "warn", "hides operators that run on the CPU"),)),
    Variable("TORCH_NCCL_BLOCKING_WAIT", "bool", "wait() blocks the host.", "torch", "0",
             profiles={"probe": "0"}, devices=("cuda",), reads="torch-bool",
             why="the watchdog aborts a hang by itself; blocking would time the host",
             source="PyTorch source, ProcessGroupNCCL"),
    Variable("TORCHINDUCTOR_*", "str", "The compiler's settings.", "torch", source="PyTorch documentation, inductor"),
    Variable("TORCH_COMPILE_DISABLE", "bool", "Run everything eagerly.", "torch", "0", reads="torch-bool",
             source="PyTorch documentation, torch.compile",
             cautions=(Caution("1", "warn", "no compile partition: the largest single step of the ladder is off"),)),
)  # fmt: skip
