"""Values and names of variables, transport, peers and their handles. `message.py` says what the fields are."""

from __future__ import annotations

from xpu_moe.doctor.messages.message import Message, row

MESSAGES: tuple[Message, ...] = (
    # values and names
    row(
        "value-refused", ("unexpected value",), "cause", "error", "env.{name}",
        r"(?P<name>[A-Za-z_][A-Za-z0-9_]+): unexpected value: (?P<value>.*?), expected values?: (?P<wanted>.*)",
        "{name} has a value that oneCCL does not accept: {value}",
        "oneCCL ends the process at such a value; it accepts {wanted}.",
        "unset {name}",
        "oneCCL env parser",
    ),
    row(
        "algorithm-refused", ("unknown algorithm name",), "cause", "error", "env.{name|CCL_ALLREDUCE}",
        r"(?:(?P<name>CCL_[A-Z0-9_]+).*)?unknown algorithm name",
        "an algorithm name that oneCCL does not know",
        "A CCL_<collective> variable holds a name that is not in the list which the line prints.",
        "unset {name|CCL_ALLREDUCE}",
        "oneCCL env parser",
    ),
    row(
        "vllm-variable-unknown", ("Unknown vLLM environment variable",), "cause", "warn", "env.{name}",
        r"Unknown vLLM environment variable detected: (?P<name>[A-Za-z0-9_]+)",
        "{name} is not read by this vLLM",
        "The name is gone, or comes from a fork: the setting does nothing.",
        "unset {name}; use the command-line flag instead",
        "vLLM envs.py",
    ),
    row(
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
    row(
        "mpi-transport", ("MPIDI_GPU_init", "MPI_Init"), "cause", "error", "env.CCL_ATL_TRANSPORT",
        r"MPIDI_GPU_init|MPI_Init(_thread)?\(.*failed",
        "the MPI transport died under vLLM's workers",
        "vLLM starts its workers itself; MPI's GPU initialisation needs a launcher of its own.",
        "export CCL_ATL_TRANSPORT=ofi",
        "B70 u4 decode note; oneCCL source",
    ),
    row(
        "transport-switched", ("MPI-launcher specific variables",), "note", "info", "env.CCL_ATL_TRANSPORT",
        r"did not find MPI-launcher specific variables",
        "oneCCL went over to the ofi transport",
        "Harmless.",
        "export CCL_ATL_TRANSPORT=ofi says the same without the line",
        "oneCCL source",
    ),
    row(
        "no-interface", ("find interface", "interfaces to connect"), "cause", "error", "env.CCL_KVS_IFACE",
        r"(?:can't|cannot|can not|failed to|not|unable to) find (?:an? |any )?interface|find interface",
        "oneCCL's key-value store found no network interface",
        "It never chooses the loopback by itself; a container may have nothing else.",
        "export CCL_KVS_IFACE=lo",
        "oneCCL source",
    ),
    row(
        "no-provider", ("fi_getinfo", "providers"), "cause", "error", "env.FI_PROVIDER",
        r"fi_getinfo|(?:no|any|find|available|usable) (?:\w+ )?providers",
        "libfabric has no such provider",
        "The name in FI_PROVIDER is unknown to oneCCL's libfabric, or its provider folder was not found.",
        "export FI_PROVIDER=tcp; unset FI_PROVIDER_PATH",
        "libfabric documentation", also=("env.FI_PROVIDER_PATH",),
    ),
    # peers and handles
    row(
        "no-peer-access", ("zeMemOpenIpcHandle", "zeMemGetIpcHandle"), "cause", "error", "peer_access",
        r"zeMem(?:Open|Get)IpcHandle",
        "no peer access between the cards",
        "A card could not map another card's memory: the host refuses peer access, or it was forced.",
        "scripts/serve_minimax.sh --profile no-p2p (CCL_TOPO_P2P_ACCESS=0 and the SIMPLE_THRESHOLD trio)",
        "compute-runtime#935; B70 field notes 14", blames=(("CCL_TOPO_P2P_ACCESS", None),),
    ),
    row(
        "pidfd-missing", ("pidfd is not supported",), "cause", "warn", "os.capabilities",
        r"pidfd is not supported",
        "the exchange of memory handles fell back to drmfd",
        "pidfd_getfd is not allowed here (no SYS_PTRACE, or seccomp); an explicit CCL_ZE_IPC_EXCHANGE is "
        "overridden.",
        "run the container with --cap-add SYS_PTRACE; unset CCL_ZE_IPC_EXCHANGE",
        "uxlfoundation/oneCCL#213", blames=(("CCL_ZE_IPC_EXCHANGE", None),), also=("os.capabilities",),
    ),
    row(
        "pidfd-refused", ("pidfd_getfd", "ptrace_scope"), "cause", "error", "os.yama_ptrace_scope",
        r"pidfd_getfd.*(?:fail|denied|not permitted|error)|ptrace_scope",
        "the host forbids processes to take each other's handles",
        "kernel.yama.ptrace_scope is not 0 and the process lacks SYS_PTRACE.",
        "sudo sysctl kernel.yama.ptrace_scope=0, or run the container with --cap-add SYS_PTRACE",
        "oneCCL source; kernel Yama documentation", also=("os.capabilities",),
    ),
    row(
        "by-path-missing", ("opendir failed", "by-path"), "cause", "error", "os.dri_by_path",
        r"opendir failed: could not open device directory|/dev/dri/by-path.*(?:No such|not found|fail|cannot)|"
        r"(?:No such|not found|fail|cannot).*?/dev/dri/by-path",
        "/dev/dri/by-path is not there",
        "The drmfd exchange opens render nodes by path; the folder is not mounted into the container.",
        "add -v /dev/dri/by-path:/dev/dri/by-path to the container",
        "uxlfoundation/oneCCL#217",
    ),
    row(
        "device-fd", ("device_fd",), "cause", "error", "os.dri_by_path",
        r"device_fds?\b",
        "oneCCL could not open a card's render node",
        "by-path is not mounted, the nodes may not be opened, or pidfd is forbidden.",
        "mount /dev/dri and /dev/dri/by-path, join group render, add SYS_PTRACE",
        "uxlfoundation/oneCCL#217",
    ),
    row(
        "no-permission", ("/dev/dri", "/dev/kfd"), "cause", "error", "os.dri_by_path",
        r"(?:Permission denied|EACCES).*/dev/dri|/dev/dri.*(?:Permission denied|EACCES)",
        "the device nodes may not be opened",
        "Only members of group render (and video) may open /dev/dri/render*.",
        "sudo usermod -aG render,video $USER, then log in again (container: --group-add the number of group render)",
        "B70 field notes 11", also=("gpus",),
    ),
    row(
        "driver-not-up",
        ("ERROR_UNINITIALIZED", "No XPU devices", "no SYCL devices", "No device of requested type",
         "device count is zero"),
        "cause", "error", "gpus",
        r"RESULT_ERROR_UNINITIALIZED|No XPU devices are available|[Nn]o SYCL devices|No device of requested type"
        r"|XPU device count is zero",
        "the driver did not come up: no card is visible",
        "Compute runtime not installed, kernel module missing, nodes that may not be opened, or resizable BAR off.",
        "python -m xpu_moe.doctor says which; else: ls -l /dev/dri; groups; dmesg | grep xe",
        "B70 field notes 11, 14",
    ),
)  # fmt: skip
