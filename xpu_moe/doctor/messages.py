"""The messages that people paste, and what they mean: a table. `logs.py` walks it.

`kind`: a `cause` explains the failure, a `symptom` follows from one, a `note` is harmless or only informs.
`about` may name a group of the pattern in braces (`env.{name}`). `keys` are literals of which a matching line contains
at least one: a cheap test before the pattern. `blames` names settings that, when the log shows them changed to the
given value (`None` = any), are the setting to change: the finding is then about the first of them. `where` restricts a
message to phases. `asked`: words of the launch's own
arguments ("non-default args") that make the finding one about that setting. `also` are further places worth a look.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["cause", "symptom", "note"]
Severity = Literal["error", "warn", "info"]


@dataclass(frozen=True)
class Message:
    code: str
    keys: tuple[str, ...]
    pattern: re.Pattern[str]
    kind: Kind
    severity: Severity
    about: str
    title: str
    why: str
    fix: str
    source: str
    blames: tuple[tuple[str, str | None], ...] = ()
    where: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    asked: tuple[tuple[str, str], ...] = ()


def _m(
    code: str, keys: tuple[str, ...], kind: Kind, severity: Severity, about: str, pattern: str, title: str, why: str,
    fix: str, source: str, blames: tuple[tuple[str, str | None], ...] = (), where: tuple[str, ...] = (),
    also: tuple[str, ...] = (), asked: tuple[tuple[str, str], ...] = (),
) -> Message:  # fmt: skip
    return Message(
        f"log.{code}", keys, re.compile(pattern), kind, severity, about, title, why, fix, source, blames, where, also,
        asked,
    )  # fmt: skip


# settings that stop collectives, in the order in which they deserve the blame (ladder of the B70 note, oneCCL source)
STOPPERS: tuple[tuple[str, str | None], ...] = (
    ("CCL_TOPO_P2P_ACCESS", "0"), ("CCL_ATL_TRANSPORT", "mpi"), ("CCL_WORKER_COUNT", None), ("CCL_ALLREDUCE", None),
    ("CCL_ZE_CACHE_OPEN_IPC_HANDLES", None), ("CCL_PROCESS_LAUNCHER", None), ("CCL_LOCAL_SIZE", None),
    ("CCL_TOPO_FABRIC_VERTEX_CONNECTION_CHECK", "0"), ("CCL_ZE_IPC_EXCHANGE", None), ("CCL_TOPO_P2P_ACCESS", None),
)  # fmt: skip

# arguments that stalled workers on four B70 (B70 field notes, 9)
STALLERS: tuple[tuple[str, str], ...] = (
    ("ngram", "plan.speculative_method"), ("'enable_expert_parallel': True", "plan.enable_expert_parallel"),
    ("profiler", "plan.profiler"), ("'kv_cache_dtype': 'fp8", "plan.kv_cache_dtype"),
)  # fmt: skip

MESSAGES: tuple[Message, ...] = (
    # values and names
    _m(
        "value-refused", ("unexpected value",), "cause", "error", "env.{name}",
        r"(?P<name>[A-Za-z_][A-Za-z0-9_]+): unexpected value: (?P<value>.*?), expected values?: (?P<wanted>.*)",
        "{name} has a value that oneCCL does not accept: {value}",
        "oneCCL ends the process at such a value; it accepts {wanted}.",
        "unset {name}",
        "oneCCL env parser",
    ),
    _m(
        "algorithm-refused", ("unknown algorithm name",), "cause", "error", "env.{name|CCL_ALLREDUCE}",
        r"(?:(?P<name>CCL_[A-Z0-9_]+).*)?unknown algorithm name",
        "an algorithm name that oneCCL does not know",
        "A CCL_<collective> variable holds a name that is not in the list which the line prints.",
        "unset {name|CCL_ALLREDUCE}",
        "oneCCL env parser",
    ),
    _m(
        "vllm-variable-unknown", ("Unknown vLLM environment variable",), "cause", "warn", "env.{name}",
        r"Unknown vLLM environment variable detected: (?P<name>[A-Za-z0-9_]+)",
        "{name} is not read by this vLLM",
        "The name is gone, or comes from a fork: the setting does nothing.",
        "unset {name}; use the command-line flag instead",
        "vLLM envs.py",
    ),
    _m(
        "graph-variable-absent",
        ("XPU Graph is disabled by environment",),
        "cause", "warn", "env.VLLM_XPU_ENABLE_XPU_GRAPH",
        r"XPU Graph is disabled by environment variable",
        "a graph was asked for, the variable is absent in the engine",
        "The workers inherit the environment of the start: set later it is not seen.",
        "export VLLM_XPU_ENABLE_XPU_GRAPH=1 before the server starts",
        "vLLM platforms/xpu.py",
    ),
    # transport
    _m(
        "mpi-transport", ("MPIDI_GPU_init", "MPI_Init"), "cause", "error", "env.CCL_ATL_TRANSPORT",
        r"MPIDI_GPU_init|MPI_Init(_thread)?\(.*failed",
        "the MPI transport died under vLLM's workers",
        "vLLM starts its workers itself; MPI's GPU initialisation needs a launcher of its own.",
        "export CCL_ATL_TRANSPORT=ofi",
        "B70 u4 decode note; oneCCL source",
    ),
    _m(
        "transport-switched", ("MPI-launcher specific variables",), "note", "info", "env.CCL_ATL_TRANSPORT",
        r"did not find MPI-launcher specific variables",
        "oneCCL went over to the ofi transport",
        "Harmless.",
        "export CCL_ATL_TRANSPORT=ofi says the same without the line",
        "oneCCL source",
    ),
    _m(
        "no-interface", ("find interface", "interfaces to connect"), "cause", "error", "env.CCL_KVS_IFACE",
        r"(?:can't|cannot|can not|failed to|not|unable to) find (?:an? |any )?interface|find interface",
        "oneCCL's key-value store found no network interface",
        "It never chooses the loopback by itself; a container may have nothing else.",
        "export CCL_KVS_IFACE=lo",
        "oneCCL source",
    ),
    _m(
        "no-provider", ("fi_getinfo", "providers"), "cause", "error", "env.FI_PROVIDER",
        r"fi_getinfo|(?:no|any|find|available|usable) (?:\w+ )?providers",
        "libfabric has no such provider",
        "The name in FI_PROVIDER is unknown to oneCCL's libfabric, or its provider folder was not found.",
        "export FI_PROVIDER=tcp; unset FI_PROVIDER_PATH",
        "libfabric documentation", also=("env.FI_PROVIDER_PATH",),
    ),
    # peers and handles
    _m(
        "no-peer-access", ("zeMemOpenIpcHandle", "zeMemGetIpcHandle"), "cause", "error", "peer_access",
        r"zeMem(?:Open|Get)IpcHandle",
        "no peer access between the cards",
        "A card could not map another card's memory: the host refuses peer access, or it was forced.",
        "scripts/serve_minimax.sh --profile no-p2p (CCL_TOPO_P2P_ACCESS=0 and the SIMPLE_THRESHOLD trio)",
        "compute-runtime#935; B70 field notes 14", blames=(("CCL_TOPO_P2P_ACCESS", None),),
    ),
    _m(
        "pidfd-missing", ("pidfd is not supported",), "cause", "warn", "os.capabilities",
        r"pidfd is not supported",
        "the exchange of memory handles fell back to drmfd",
        "pidfd_getfd is not allowed here (no SYS_PTRACE, or seccomp); an explicit CCL_ZE_IPC_EXCHANGE is "
        "overridden.",
        "run the container with --cap-add SYS_PTRACE; unset CCL_ZE_IPC_EXCHANGE",
        "uxlfoundation/oneCCL#213", blames=(("CCL_ZE_IPC_EXCHANGE", None),), also=("os.capabilities",),
    ),
    _m(
        "pidfd-refused", ("pidfd_getfd", "ptrace_scope"), "cause", "error", "os.yama_ptrace_scope",
        r"pidfd_getfd.*(?:fail|denied|not permitted|error)|ptrace_scope",
        "the host forbids processes to take each other's handles",
        "kernel.yama.ptrace_scope is not 0 and the process lacks SYS_PTRACE.",
        "sudo sysctl kernel.yama.ptrace_scope=0, or run the container with --cap-add SYS_PTRACE",
        "oneCCL source; kernel Yama documentation", also=("os.capabilities",),
    ),
    _m(
        "by-path-missing", ("opendir failed", "by-path"), "cause", "error", "os.dri_by_path",
        r"opendir failed: could not open device directory|/dev/dri/by-path.*(?:No such|not found|fail|cannot)|"
        r"(?:No such|not found|fail|cannot).*?/dev/dri/by-path",
        "/dev/dri/by-path is not there",
        "The drmfd exchange opens render nodes by path; the folder is not mounted into the container.",
        "add -v /dev/dri/by-path:/dev/dri/by-path to the container",
        "uxlfoundation/oneCCL#217",
    ),
    _m(
        "device-fd", ("device_fd",), "cause", "error", "os.dri_by_path",
        r"device_fds?\b",
        "oneCCL could not open a card's render node",
        "by-path is not mounted, the nodes may not be opened, or pidfd is forbidden.",
        "mount /dev/dri and /dev/dri/by-path, join group render, add SYS_PTRACE",
        "uxlfoundation/oneCCL#217",
    ),
    _m(
        "no-permission", ("/dev/dri", "/dev/kfd"), "cause", "error", "os.dri_by_path",
        r"(?:Permission denied|EACCES).*/dev/dri|/dev/dri.*(?:Permission denied|EACCES)",
        "the device nodes may not be opened",
        "Only members of group render (and video) may open /dev/dri/render*.",
        "sudo usermod -aG render,video $USER, then log in again (container: --group-add the number of group render)",
        "B70 field notes 11", also=("gpus",),
    ),
    _m(
        "driver-not-up",
        ("ERROR_UNINITIALIZED", "No XPU devices", "no SYCL devices", "No device of requested type"),
        "cause", "error", "gpus",
        r"RESULT_ERROR_UNINITIALIZED|No XPU devices are available|[Nn]o SYCL devices|No device of requested type",
        "the driver did not come up: no card is visible",
        "Resizable BAR off, kernel module missing, or the nodes may not be opened.",
        "check: ls -l /dev/dri; groups; dmesg | grep xe; resizable BAR in the firmware setup",
        "B70 field notes 11, 14",
    ),
    # shared memory, host memory
    _m(
        "shm-full", ("/dev/shm", "shared memory segment", "Bus error", "SIGBUS"), "cause", "error", "os.shm_bytes",
        r"shared memory segment|/dev/shm.*(?:No space|full|fail|error|ENOSPC)|(?:No space left|ENOSPC|fail|"
        r"error).*/dev/shm|Bus error|SIGBUS",
        "/dev/shm is too small",
        "vLLM's message queue and the collective library put their buffers there; a container gets 64 MiB.",
        "run the container with --ipc=host or --shm-size=16g",
        "vllm#27313; B70 field notes 11",
    ),
    _m(
        "host-memory",
        ("oom-kill", "Out of memory: Kill", "oom_reaper", "Memory cgroup out of memory"),
        "cause", "error", "os.ram_bytes",
        r"oom-kill|Out of memory: Kill|oom_reaper|Memory cgroup out of memory",
        "the kernel ended a process for want of host memory",
        "Loading passes the weights through host memory.",
        "add swap of the size of the device memory",
        "llm-scaler#672",
    ),
    # device
    _m(
        "no-space", ("No space left", "ENOSPC"), "cause", "error", "os.shm_bytes",
        r"No space left on device|ENOSPC",
        "no space is left: /dev/shm, or a disk",
        "vLLM's message queue and the collective library put buffers into /dev/shm; a container gets 64 MiB.",
        "df -h; run the container with --ipc=host or --shm-size=16g; else make room on the disk of the cache",
        "vllm#27313",
    ),
    _m(
        "iommu-fault", ("DMAR", "AMD-Vi", "IO_PAGE_FAULT"), "cause", "error", "os.iommu",
        r"DMAR: .*fault|IO_PAGE_FAULT|AMD-Vi: .*(?:fault|timeout)",
        "the IOMMU stopped an access",
        "Peer traffic between cards went through the IOMMU and was refused.",
        "boot with intel_iommu=off (AMD: amd_iommu=off) or iommu=pt",
        "intel/compute-runtime#935",
    ),
    _m(
        "small-bar", ("mall BAR", "resize BAR", "esizable BAR"), "cause", "error", "gpus",
        r"[Ss]mall BAR|[Ff]ailed to resize BAR|[Rr]esizable BAR.*(?:off|disabled|not)",
        "the card's memory is not mapped as a whole",
        "Resizable BAR is off: slow loads, no peer access, and on B-series the driver may not come up.",
        "switch on Resizable BAR and above-4G decoding in the firmware setup, CSM off",
        "intel/llm-scaler FAQ",
    ),
    _m(
        "link-errors", ("AER:", "PCIe Bus Error"), "cause", "warn", "gpus",
        r"AER: .*(?:rror|rrect)|PCIe Bus Error",
        "the PCIe link of a device makes errors",
        "Risers, M.2 adapters and long cables are the usual reason.",
        "reseat the card, shorten the riser, or lower the slot's speed in the firmware setup",
        "B70 field notes 11",
    ),
    _m(
        "step-timeout", ("timed out",), "symptom", "error", "peer_access",
        r"(?:RPC call to )?(?:sample_tokens|execute_model)\b.*timed out",
        "a step did not end in time",
        "A worker stands still; the last phase and the settings say why.",
        "python -m xpu_moe.probe allreduce --world N",
        "B70 field notes 9", blames=STOPPERS, asked=STALLERS,
    ),
    _m(
        "device-lost", ("DEVICE_LOST",), "cause", "error", "gpus",
        r"(?:UR|ZE|PI)_(?:RESULT_)?ERROR_DEVICE_LOST",
        "a card was lost: driver, firmware or kernel",
        "The GPU was reset under the process; the model or its size is not the reason.",
        "look at dmesg for 'Engine reset'; compare GuC, kernel and compute-runtime with the known-good set",
        "llm-scaler#595, #723; B70 field notes 10",
    ),
    _m(
        "engine-reset", ("Engine reset", "Timedout job", "CAT error", "CAT_ERROR", "job timed out"),
        "cause", "error", "gpus",
        r"Engine reset|Timedout job|CAT[ _]error|CAT_ERROR|Kernel-submitted job timed out",
        "the kernel reset a GPU engine{guc}",
        "A job did not end or touched foreign memory; GuC 70.58.0 is known for it.",
        "update linux-firmware (GuC 70.72.1 or 70.54.0 cured reports) or the kernel (>= 7.1)",
        "vllm#55425",
    ),
    _m(
        "capture-out-of-resources", ("OUT_OF_RESOURCES",), "cause", "error", "plan.cudagraph_capture_sizes",
        r"OUT_OF_RESOURCES",
        "too many graphs were captured",
        "Each captured size holds command lists and memory; the default list goes up to 512.",
        "--compilation-config '{\"cudagraph_capture_sizes\": [1, 2, 4]}'",
        "llm-scaler#698; xpu-kernels#509", where=("capture",),
    ),
    _m(
        "out-of-resources", ("OUT_OF_RESOURCES", "OUT_OF_DEVICE_MEMORY"), "cause", "error", "gpus",
        r"OUT_OF_RESOURCES|OUT_OF_DEVICE_MEMORY",
        "the card has no room for an allocation",
        "Device memory is used up, or one allocation is over 4 GB.",
        "pin --kv-cache-memory-bytes; export UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 for tensors over 4 GB",
        "B70 field notes 3, 14",
    ),
    _m(
        "out-of-memory", ("out of memory", "OutOfMemoryError"), "cause", "error", "gpus",
        r"(?:XPU|CUDA|HIP) out of memory|OutOfMemoryError",
        "device memory is used up",
        "Weights, KV cache and activations together are more than the card holds.",
        "python -m xpu_moe.plan --model DIR --tp N shows the parts",
        "B70 field notes 3",
    ),
    _m(
        "kv-too-small",
        ("KV cache is needed", "No available memory for the cache blocks"),
        "cause", "error", "plan.kv_cache_memory_bytes",
        r"KV cache is needed|No available memory for the cache blocks",
        "the KV cache does not hold one sequence of max_model_len",
        "What is left beside weights and graphs is less than one full sequence needs.",
        "python -m xpu_moe.plan --model DIR --tp N gives --kv-cache-memory-bytes; or lower --max-model-len",
        "kv_points", also=("plan.max_model_len",),
    ),
    # graph
    _m(
        "graph-needs-oneccl", ("Capturing XCCL collectives",), "cause", "error", "plan.graph",
        r"Capturing XCCL collectives is only allowed",
        "a collective stood inside a captured graph, and the oneCCL is too old for it",
        "Capture of XCCL collectives needs oneCCL >= 2022.0.",
        "start without graphs, or upgrade oneCCL",
        "intel/torch-xpu-ops#3570",
    ),
    _m(
        "graph-no-communication", ("support capture communication",), "cause", "warn", "plan.graph",
        r"XPU Graph doesn't support capture communication ops",
        "this vLLM takes no graph with several cards",
        "vLLM 0.21 switches graphs off when the world size is above 1.",
        "start without graphs, or use vLLM >= 0.26",
        "vLLM platforms/xpu.py",
    ),
    _m(
        "graph-cuda-communicator", ("CudaCommunicator",), "cause", "error", "plan.graph",
        r"isinstance\(self\.device_communicator, CudaCommunicator\)",
        "graph capture expects a CUDA communicator",
        "A gap of vLLM before 0.26: the XPU communicator is not accepted.",
        "start without graphs, or use vLLM >= 0.26",
        "B70 u4 decode note",
    ),
    _m(
        "graph-scratch-memory", ("work_group_scratch_memory", "UNSUPPORTED_FEATURE"), "cause", "error", "plan.graph",
        r"work_group_scratch_memory|ERROR_UNSUPPORTED_FEATURE",
        "a kernel cannot be captured",
        "It uses work-group scratch memory, which SYCL graphs do not take.",
        "start without graphs, or use cudagraph_mode PIECEWISE so that the kernel stays outside",
        "B70 field notes 8",
    ),
    _m(
        "graph-attention-piecewise", ("FMHA sycl-tla kernels",), "note", "info", "plan.graph",
        r"FMHA sycl-tla kernels cannot be captured",
        "attention stays outside the graph: FULL became PIECEWISE",
        "Harmless.",
        "set cudagraph_mode PIECEWISE explicitly",
        "vLLM platforms/xpu.py",
    ),
    # libraries
    _m(
        "library-missing", ("cannot open shared object file",), "cause", "error", "libraries",
        r"(?P<name>lib[\w.+-]+\.so[\w.]*): cannot open shared object file",
        "{name} was not found: a library of another generation",
        "One process holds one oneAPI generation: libsycl.so.8 is 2025, libsycl.so.9 is 2026.",
        "do not source setvars.sh of another oneAPI; install the wheels that belong together",
        "vllm#49924",
    ),
    _m(
        "library-symbol", ("undefined symbol", "__sycl_register_lib", "GLIBCXX_"), "cause", "error", "libraries",
        r"undefined symbol|__sycl_register_lib|version `GLIBCXX_",
        "two generations of a runtime meet",
        "An extension was built against another runtime than the one loaded.",
        "install the wheels that belong together; unset LD_LIBRARY_PATH and LD_PRELOAD",
        "B70 field notes 10",
    ),
    _m(
        "kernels-missing", ("No module named",), "cause", "error", "python.packages.vllm-xpu-kernels",
        'No module named [\'\\"]vllm_xpu_kernels',
        "the XPU kernels are not installed",
        "vLLM on XPU imports vllm_xpu_kernels when it starts; wheels exist for Python 3.12.",
        "pip install vllm-xpu-kernels (Python 3.12)",
        "B70 field notes 10",
    ),
    # checkpoint
    _m(
        "router-quantised", ("KeyError", "ValueError"), "cause", "error", "model.tensor_names",
        r"[A-Za-z]*Error:? .*(?:gate|router)\.(?:qweight|qzeros|scales|g_idx|weight_packed|weight_scale\w*|"
        r"weight_zero_point)",
        "the router in this checkpoint was quantised",
        "vLLM loads the gate as a plain fp32 matrix; qweight, qzeros, scales or g_idx there have no place.",
        "take an export that keeps the router (block_sparse_moe.gate) unquantised",
        "intel/auto-round#1462",
    ),
    _m(
        "tensor-unexpected",
        ("KeyError", "no parameter", "no module or parameter"),
        "cause", "error", "model.tensor_names",
        'KeyError: [\'\\"][\\w.]*layers\\.\\d+\\.[\\w.]+[\'\\"]|no (?:module or )?parameter named',
        "the checkpoint holds a tensor that the model does not expect",
        "Names or quantised parts differ from what this vLLM loads.",
        "compare the safetensors index with another export",
        "B70 field notes 12",
    ),
    _m(
        "draft-weights-missing",
        ("weights missing", "weights were not initialized", "not initialized from checkpoint"),
        "cause", "error", "model.tensor_names",
        r"weights (?:are )?missing from (?:the )?checkpoint|weights were not initialized from checkpoint|"
        r"not initialized from checkpoint",
        "the checkpoint lacks tensors",
        "A layer (often a draft layer that config.json advertises) has no weights in the index.",
        "start without --speculative-config; check the download",
        "MiniMax-M2.7#16", also=("plan.speculative_method",),
        asked=(("speculative", "plan.speculative_method"),),
    ),
    _m(
        "no-moe-backend", ("No WNA16 MoE backend",), "cause", "error", "model.quantization_config",
        r"No WNA16 MoE backend supports",
        "these bits have no MoE kernel on this device",
        "On XPU only 4-bit experts have one.",
        "use a 4-bit (group 128, symmetric) checkpoint",
        "B70 cookbook#10",
    ),
    _m(
        "quantisation-mismatch",
        ("does not match the quantization method",),
        "cause", "error", "model.quantization_config",
        r"does not match the quantization method",
        "--quantization contradicts the checkpoint",
        "The checkpoint's own config.json names its method.",
        "leave --quantization away",
        "vLLM arguments",
    ),
    # plan
    _m(
        "kv-dtype", ("Unsupported data type of kv cache", "invalid choice"), "cause", "error", "plan.kv_cache_dtype",
        r"Unsupported data type of kv cache: *(?P<name>\S+)|--kv-cache-dtype: invalid choice",
        "this KV data type is refused",
        "The attention backend does not take it.",
        "--kv-cache-dtype auto",
        "B70 u4 decode note",
    ),
    _m(
        "dcp",
        ("decode context parallel", "Decode context parallel", "Decode Context Parallel", "dcp_size"),
        "cause", "error", "plan.dcp",
        r"[Dd]ecode [Cc]ontext [Pp]arallel|divisible by dcp_size",
        "decode context parallelism is impossible here",
        "Grouped-query attention needs tensor parallel size > KV heads (8 for MiniMax).",
        "--decode-context-parallel-size 1",
        "vLLM 0.26, 0.32",
    ),
    _m(
        "tp-block", ("not divisible", "block_n", "block_k", "must be divisible"), "cause", "error", "plan.tp",
        r"\bblock_[nk]\b|not divisible|must be divisible by tensor parallel|(?:attention|key/value|"
        r"kv) heads.*must be divisible",
        "the model cannot be cut into this many tensor-parallel slices",
        "Heads, KV heads or the experts' slice against the quantisation block do not divide.",
        "--tensor-parallel-size 4 (MiniMax: 1, 2 or 4)",
        "recipes#96",
    ),
    _m(
        "tool-parser", ("tool call parser",), "cause", "error", "plan.tool_call_parser",
        r"invalid tool call parser|auto-tool-choice requires --tool-call-parser",
        "this vLLM does not know the tool parser",
        "The line lists those known.",
        "--tool-call-parser minimax_m2",
        "vLLM 0.26, 0.32",
    ),
    _m(
        "reasoning-parser", ("easoning parser",), "cause", "error", "plan.reasoning_parser",
        r"[Rr]easoning parser .*not found",
        "this vLLM does not know the reasoning parser",
        "The line lists those known.",
        "--reasoning-parser minimax_m2",
        "vLLM 0.26, 0.32",
    ),
    _m(
        "attention-backend", ("attention backend", "Selected backend"), "cause", "error", "plan.attention_backend",
        r"(?:Invalid|Unknown) attention backend|Selected backend .* is not valid",
        "this attention backend cannot serve here",
        "The line says why.",
        "leave --attention-backend away",
        "vLLM platforms",
    ),
    _m(
        "speculation", ("speculative method", "speculative model"), "cause", "error", "plan.speculative_method",
        r"Unsupported speculative method|without speculative model|unknown speculative method",
        "this speculation does not exist for the model",
        "The line says why.",
        "start without --speculative-config",
        "vLLM 0.26, 0.32",
    ),
    _m(
        "length", ("derived max_model_len",), "cause", "error", "plan.max_model_len",
        r"is greater than the derived max_model_len",
        "max_model_len is above the model's own maximum",
        "The line has both.",
        "lower --max-model-len",
        "vLLM",
    ),
    _m(
        "dtype", ("float16",), "cause", "error", "plan.dtype",
        r"[Bb](?:f|F)loat16 is (?:only|not) supported",
        "this card has no bfloat16",
        "The line names it.",
        "--dtype float16",
        "vLLM",
    ),
    _m(
        "port", ("ddress already in use",), "cause", "error", "plan.port",
        r"[Aa]ddress already in use",
        "the port is taken",
        "Another server listens there.",
        "--port with another number",
        "operating system",
    ),
    # CUDA
    _m(
        "nvls", ("NVLS", "nvls", "ulticast", "MULTICAST"), "cause", "error", "env.NCCL_NVLS_ENABLE",
        r"(?i)(?:nvls|multicast).*(?:fail|error|could not|cannot|unable|not supported|bind)|"
        r"(?:fail|error|warn|could not|cannot|unable|bind).*(?:nvls|multicast)",
        "NVLink multicast could not bind",
        "Fabric manager not up, a container without multicast, MIG, or a virtual machine; NCCL 2.29 fails "
        "where 2.28 fell back.",
        "export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1",
        "nccl issues",
    ),
    _m(
        "deep-gemm", ("recipe", "DeepGEMM", "deep_gemm"), "cause", "error", "env.VLLM_USE_DEEP_GEMM",
        r"(?i)recipe.*(?:sf|scal|arch|not|unsupported|unknown|assert|fail|error)|"
        r"(?:unknown|unsupported|no|assertion|error).*recipe|deep_?gemm.*(?:recipe|unsupported|arch|assert)",
        "DeepGEMM has no kernel for this architecture",
        "It covers sm_90 and sm_100 only.",
        "export VLLM_USE_DEEP_GEMM=0",
        "vLLM issues",
    ),
    _m(
        "fp8-triton", ("fp8e4nv",), "cause", "error", "model.quantization_config",
        r"fp8e4nv",
        "Triton's e4m3 needs compute capability 8.9",
        "This card is older.",
        "use a 4-bit or 16-bit checkpoint; --kv-cache-dtype auto",
        "B70 field notes 12", also=("plan.kv_cache_dtype", "gpus"),
        asked=(("'kv_cache_dtype': 'fp8", "plan.kv_cache_dtype"),),
    ),
    # symptoms
    _m(
        "worker-stands-still", ("No available shared memory broadcast block",), "symptom", "error", "peer_access",
        r"No available shared memory broadcast block found",
        "a worker stands still",
        "The engine waits for a worker that does not answer; the last phase and the collective settings say why.",
        "python -m xpu_moe.probe allreduce --world N; unset the CCL_* settings that the default profile does "
        "not have",
        "B70 field notes 14", blames=STOPPERS, asked=STALLERS,
    ),
    _m(
        "collective-timeout", ("collective operation timeout", "Watchdog caught"), "symptom", "error", "peer_access",
        r"collective operation timeout|Watchdog caught collective",
        "a collective did not end in time",
        "A rank is missing or stands still.",
        "python -m xpu_moe.probe allreduce --world N",
        "PyTorch watchdog", blames=STOPPERS, asked=STALLERS, also=("env.NCCL_P2P_DISABLE", "os.iommu"),
    ),
    _m(
        "cancelled", ("cancelled",), "symptom", "error", "plan.speculative_method",
        r"(?:EngineCore|EngineDead|worker|Worker|RPC|sample_tokens|Error).*\bcancelled\b",
        "a worker was terminated while it sampled",
        "Seen with n-gram speculation on four B70.",
        "start without --speculative-config",
        "B70 u4 decode note", where=("serve", "answer"),
    ),
    # installation, files, ports: the first day
    _m(
        "host-memory", ("OUT_OF_HOST_MEMORY",), "cause", "error", "os.ram_bytes",
        r"(?:UR|ZE|PI)_(?:RESULT_)?(?:ERROR_)?OUT_OF_HOST_MEMORY",
        "the host has no memory left",
        "Loading keeps weights in host memory as well; the driver cannot allocate more.",
        "free host memory, or add swap, before loading",
        "Level Zero specification",
    ),
    _m(
        "killed", ("Killed",), "symptom", "error", "os.ram_bytes",
        r"line \d+: +\d+ Killed|^Killed$",
        "the process was killed from outside",
        "Mostly the kernel's out-of-memory killer: dmesg names it.",
        "dmesg; free host memory, or add swap, before loading",
        "Linux",
    ),
    _m(
        "no-device", ("DEVICE_NOT_FOUND",), "cause", "error", "gpus",
        r"(?:UR|PI)_(?:RESULT_)?ERROR_DEVICE_NOT_FOUND",
        "the runtime sees no card",
        "The driver is not loaded, the nodes are not open to this user, or a selector leaves none.",
        "python -m xpu_moe.doctor",
        "SYCL runtime", also=("env.ONEAPI_DEVICE_SELECTOR", "env.ZE_AFFINITY_MASK"),
    ),
    _m(
        "memory-taken", ("less than desired GPU memory",), "cause", "error", "gpus",
        r"Free memory on device .*less than desired GPU memory utilization",
        "something else holds memory of the card",
        "Another process, a display or a run that did not end; vLLM wants its share free at the start.",
        "end the other process, or lower --gpu-memory-utilization",
        "vLLM worker", also=("plan.gpu_memory_utilization",),
    ),
    _m(
        "tokenizer", ("tokenizer",), "cause", "error", "model.tokenizer",
        r"(?:Can't|Cannot|Couldn't) (?:load|instantiate) (?:the )?(?:backend )?tokenizer",
        "the tokenizer is not there",
        "The folder has no tokenizer files, or they came incomplete.",
        "download tokenizer.json and tokenizer_config.json of the checkpoint",
        "transformers",
    ),
    _m(
        "offline", ("HF_HUB_OFFLINE", "OfflineMode", "outgoing traffic", "offline mode"), "cause", "error",
        "env.HF_HUB_OFFLINE",
        r"OfflineModeIsEnabled|outgoing traffic has been disabled|offline mode is enabled|set 'HF_HUB_OFFLINE'",
        "a file was to be downloaded, and the hub is switched off",
        "The model was named and not given as a folder, or a file of it is missing.",
        "give --model the folder of a complete checkpoint",
        "huggingface_hub",
    ),
    _m(
        "hub-refused", ("GatedRepo", "RepositoryNotFound", "401 Client Error"), "cause", "error", "model.config",
        r"GatedRepoError|RepositoryNotFoundError|401 Client Error",
        "the hub does not give this checkpoint",
        "It is gated, or the name is wrong, or the folder that was meant does not exist.",
        "give --model the folder of a checkpoint",
        "huggingface_hub",
    ),
    _m(
        "triton-drivers", ("active drivers",), "cause", "error", "python.packages.triton",
        r"0 active drivers",
        "Triton has no backend for these cards",
        "On XPU it is triton-xpu; plain triton shadows it.",
        "pip uninstall triton; pip install --force-reinstall triton-xpu",
        "vLLM XPU installation guide",
    ),
    _m(
        "tool-choice", ("enable-auto-tool-choice",), "cause", "error", "plan.tool_call_parser",
        r"enable-auto-tool-choice requires",
        "tools were asked for without a parser",
        "The parser turns the model's text into calls.",
        "--tool-call-parser minimax_m2",
        "vLLM arguments",
    ),
    _m(
        "suffix", ("rctic",), "cause", "error", "plan.speculative_method",
        r"[Aa]rctic[ _-][Ii]nference is (?:required|not)",
        "suffix speculation lacks its package",
        "vLLM takes it from arctic-inference.",
        "start without --speculative-config",
        "vLLM config/speculative.py",
    ),
    _m(
        "no-bfloat16", ("bfloat16",), "cause", "error", "plan.dtype",
        r"(?:does not support|unsupported|not supported).{0,40}bfloat16|bfloat16.{0,60}not supported",
        "the card has no bfloat16",
        "Alchemist cards (A770, A750) are served in float16.",
        "--dtype float16",
        "vLLM platforms/xpu.py",
    ),
    _m(
        "kv-e5m2", ("fp8_e5m2",), "cause", "error", "plan.kv_cache_dtype",
        r"fp8_e5m2 kv-?cache is not supported",
        "KV in e5m2 does not go with this checkpoint",
        "vLLM refuses it beside FP8 weights.",
        "--kv-cache-dtype auto",
        "vLLM attention layer",
    ),
    _m(
        "header", ("SafetensorError", "deserializing header"), "cause", "error", "model.index_error",
        r"SafetensorError|deserializing header",
        "a file of the checkpoint is damaged",
        "Its header does not fit its length: the download ended early.",
        "download the named file again",
        "safetensors format",
    ),
    _m(
        "shard", (".safetensors",), "cause", "error", "model.shards_missing",
        r"(?:No such file or directory|FileNotFoundError|does not exist).*\.safetensors",
        "a file of the checkpoint is missing",
        "The index names it, the folder does not have it.",
        "download the checkpoint again",
        "safetensors index",
    ),
    _m(
        "torch-build", ("no kernel image", "not compiled with"), "cause", "error", "python.packages.torch",
        r"no kernel image is available|Torch not compiled with (?:XPU|CUDA) enabled",
        "this torch was built for other cards",
        "Its build has no kernels for the cards of this machine.",
        "install the build of torch for these cards",
        "PyTorch builds",
    ),
    _m(
        "device-type", ("infer device type",), "cause", "error", "python.packages.vllm",
        r"Failed to infer device type",
        "vLLM found no platform",
        "The installed vLLM is another platform's, or its platform package does not import.",
        "python -m xpu_moe.doctor --deep",
        "vLLM platforms", also=("python.packages.torch",),
    ),
    _m(
        "no-vllm", ("No module named",), "cause", "error", "python.packages.vllm",
        r"No module named '?vllm'?(?:\W|\Z)",
        "vLLM is not installed here",
        "Another Python, or another environment.",
        "activate the environment that has vLLM",
        "Python",
    ),
    _m(
        "peers-unsupported", ("peer access is not supported",), "cause", "error", "peer_access",
        r"peer access is not supported",
        "these cards do not reach each other",
        "Their links, the IOMMU or the driver of consumer cards refuse it.",
        "export NCCL_P2P_DISABLE=1 (CUDA), or --profile no-p2p",
        "CUDA runtime", also=("env.NCCL_P2P_DISABLE",),
    ),
    _m(
        "driver-old", ("driver on your system is too old", "driver version is insufficient"), "cause", "error",
        "libraries",
        r"driver on your system is too old|driver version is insufficient",
        "the NVIDIA driver is older than this CUDA",
        "torch was built for a newer CUDA than the driver knows.",
        "update the driver, or install the torch build of an older CUDA",
        "CUDA compatibility",
    ),
    _m(
        "card-wedged", ("GuC load failed", "wedged", "declared device"), "cause", "error", "gpus",
        r"GuC load failed|as wedged|device wedged",
        "the kernel gave a card up",
        "Firmware did not load, or a reset failed; only a reboot or a driver reload brings it back.",
        "reboot; update linux-firmware and the kernel",
        "xe driver",
    ),
    _m(
        "xid", ("Xid", "fallen off the bus"), "cause", "error", "gpus",
        r"NVRM: .*Xid|fallen off the bus",
        "the NVIDIA driver reports a fault of the card",
        "The number after the address says which; 79 is a lost card: power, slot, riser.",
        "nvidia-smi -q; look the number up in NVIDIA's Xid list",
        "NVIDIA Xid errors",
    ),
    _m(
        "store-port", ("failed to listen", "EADDRINUSE"), "cause", "error", "plan.port",
        r"server socket has failed to listen|EADDRINUSE",
        "the port is taken",
        "Another run holds the port of the server or of the ranks' store.",
        "end the other run, or choose another --port (MASTER_PORT for the ranks)",
        "PyTorch TCPStore",
    ),
    _m(
        "nccl-interface", ("no socket interface found",), "cause", "error", "env.NCCL_SOCKET_IFNAME",
        r"no socket interface found",
        "NCCL found no network interface",
        "The name in NCCL_SOCKET_IFNAME does not exist here, or there is only the loopback, which must be named.",
        "export NCCL_SOCKET_IFNAME=lo (one host), or unset it",
        "NCCL documentation",
    ),
    _m(
        "kernel-lacks", ("pidfd_open", "pidfd_getfd", "Module xe not found"), "cause", "error", "os.kernel",
        r"pidfd_(?:open|getfd).*Function not implemented|Module xe not found",
        "the kernel is too old for this",
        "pidfd needs 5.6, Battlemage cards the xe driver of 6.11 or later.",
        "install a newer kernel (6.17 or later for B70)",
        "B70 field notes 11",
    ),
    _m(
        "open-files", ("Too many open files",), "cause", "error", "os.open_files",
        # not vLLM's warning at every start, which quotes the message as what might come
        r"(?<!errors like `OSError: )Too many open files",
        "the limit of open files is too low",
        "Every shard, socket and IPC handle takes one.",
        "ulimit -n 65536",
        "POSIX",
    ),
    _m(
        "runtime-code", ("UR_RESULT_ERROR_", "ZE_RESULT_ERROR_", "PI_ERROR_"), "symptom", "error", "gpus",
        r"(?P<code>(?:UR_RESULT|ZE_RESULT|PI)_ERROR_\w+)",
        "the driver refused a call: {code}",
        "No row knows this code by itself; the first such line of a worker says most.",
        "python -m xpu_moe.doctor; dmesg",
        "Level Zero and Unified Runtime specifications",
    ),
)  # fmt: skip

# lines that name a variable and mean nothing bad
HARMLESS = re.compile(
    r"topology recognition shows PCIe connection|did not find MPI-launcher|value of \w+ changed to be"
    r"|non-default args:|Automatically detected platform"
)
