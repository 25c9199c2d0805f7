"""Faults of the same kinds as the recorded cases, made by changing one thing in a healthy one.

(name, base, changes, severity, about). A change sets a path; `...` removes it. Each member of the tables in the facts
(parsers of values, negatives, versions, hardware, checkpoints) stands here once at least.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
B70, NO_P2P, B60, ONE, H200 = "4xb70-default", "4xb70-no-p2p-profile", "2xb60", "1xb70-tp1", "4xh200-cuda"
GIB = 1 << 30
MATRIX = [[a == b for b in range(4)] for a in range(4)]
PAIRS = [[a // 2 == b // 2 for b in range(4)] for a in range(4)]
GPTQ_MOE = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
W4 = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}}}
GATE = "model.layers.3.block_sparse_moe.gate."


def healthy(name: str) -> dict[str, Any]:
    """The facts of a healthy case, fresh."""
    return json.loads((CASES / "facts" / f"healthy-{name}.json").read_text())["facts"]


def changed(base: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Healthy facts with `a.b.0.c` set to new values; a list given for `model.tensor_names+` is added to it."""
    facts = copy.deepcopy(healthy(base))
    for path, value in changes.items():
        *parents, last = path.removesuffix("+").split("/")
        place: Any = facts
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        if path.endswith("+"):
            place[last] = [*place[last], *value]
        elif value is ...:
            place.pop(last, None)
        elif isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    return facts


def env(**values: Any) -> dict[str, Any]:
    return {f"env/{name}": value for name, value in values.items()}


def plan(**values: Any) -> dict[str, Any]:
    return {f"plan/{name}": value for name, value in values.items()}


def every_card(count: int, **values: Any) -> dict[str, Any]:
    return {f"gpus/{n}/{name}": value for n in range(count) for name, value in values.items()}


GRAPH_OK = {**plan(graph=True, cudagraph_capture_sizes=[1, 2, 4], max_num_batched_tokens=512, block_size=256,
                   kv_cache_memory_bytes=268435456),
            **env(VLLM_XPU_ENABLE_XPU_GRAPH="1"), "libraries/1/version": "2022.1.2"}  # fmt: skip

# (name, base, changes, severity, about)
VARIANTS: tuple[tuple[str, str, dict[str, Any], str, str], ...] = (
    # values: booleans, numbers, bytes, enums, algorithms -------------------------------------------------------
    ("bool-true", B70, env(CCL_ENABLE_SYCL_KERNELS="true"), "error", "env.CCL_ENABLE_SYCL_KERNELS"),
    ("bool-on", B70, env(CCL_ZE_CACHE="on"), "error", "env.CCL_ZE_CACHE"),
    ("bool-yes", B70, env(CCL_ZE_CACHE_OPEN_IPC_HANDLES="yes"), "error", "env.CCL_ZE_CACHE_OPEN_IPC_HANDLES"),
    ("bool-2", B70, env(CCL_SYCL_FORCE_PCIE="2"), "error", "env.CCL_SYCL_FORCE_PCIE"),
    ("bool-False", NO_P2P, env(CCL_SYCL_ALLTOALL_TMP_BUF="False"), "error", "env.CCL_SYCL_ALLTOALL_TMP_BUF"),
    ("number-exponent", NO_P2P, env(CCL_SYCL_ALLGATHERV_SIMPLE_THRESHOLD="1e9"), "warn",
     "env.CCL_SYCL_ALLGATHERV_SIMPLE_THRESHOLD"),
    ("bytes-suffix-M", B70, env(CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD="512K"), "warn",
     "env.CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD"),
    ("bytes-suffix-GiB", NO_P2P, env(CCL_SYCL_REDUCE_SCATTER_SIMPLE_THRESHOLD="4GiB"), "warn",
     "env.CCL_SYCL_REDUCE_SCATTER_SIMPLE_THRESHOLD"),
    ("bytes-tmp-buf", B70, env(CCL_SYCL_TMP_BUF_SIZE="384M"), "warn", "env.CCL_SYCL_TMP_BUF_SIZE"),
    ("number-yes", B70, env(CCL_TOPO_P2P_ACCESS="yes"), "warn", "env.CCL_TOPO_P2P_ACCESS"),
    ("number-timeout-word", B70, env(CCL_KVS_CONNECTION_TIMEOUT="30s"), "warn", "env.CCL_KVS_CONNECTION_TIMEOUT"),
    ("enum-exchange", B70, env(CCL_ZE_IPC_EXCHANGE="fd"), "error", "env.CCL_ZE_IPC_EXCHANGE"),
    ("enum-transport", B70, env(CCL_ATL_TRANSPORT="tcp"), "error", "env.CCL_ATL_TRANSPORT"),
    ("enum-launcher", B70, env(CCL_PROCESS_LAUNCHER="mpirun"), "error", "env.CCL_PROCESS_LAUNCHER"),
    ("enum-log-level", B70, env(CCL_LOG_LEVEL="verbose"), "error", "env.CCL_LOG_LEVEL"),
    ("enum-color", B70, env(CCL_TOPO_COLOR="auto"), "error", "env.CCL_TOPO_COLOR"),
    ("enum-hierarchy", B70, env(ZE_FLAT_DEVICE_HIERARCHY="FLATT"), "warn", "env.ZE_FLAT_DEVICE_HIERARCHY"),
    ("enum-method", B70, env(VLLM_WORKER_MULTIPROC_METHOD="forkserver"), "error", "env.VLLM_WORKER_MULTIPROC_METHOD"),
    ("algorithm-unknown", B70, env(CCL_ALLREDUCE="rings"), "error", "env.CCL_ALLREDUCE"),
    ("algorithm-unknown-other", B70, env(CCL_ALLGATHERV="fast"), "error", "env.CCL_ALLGATHERV"),
    ("vllm-bool-word", B70, env(VLLM_XPU_ENABLE_XPU_GRAPH="true"), "error", "env.VLLM_XPU_ENABLE_XPU_GRAPH"),
    # names that are not honoured -------------------------------------------------------------------------------
    ("name-spelt-right", B70, env(CCL_SYCL_SUB_COMMUNICATOR="0"), "warn", "env.CCL_SYCL_SUB_COMMUNICATOR"),
    ("name-typo", B70, env(CCL_ZE_IPC_EXCHNAGE="pidfd"), "warn", "env.CCL_ZE_IPC_EXCHNAGE"),
    ("name-of-a-recipe", B70, env(CCL_SYCL_ALLREDUCE_FANCY="1"), "warn", "env.CCL_SYCL_ALLREDUCE_FANCY"),
    ("attention-variable", B70, env(VLLM_ATTENTION_BACKEND="FLASH_ATTN"), "warn", "env.VLLM_ATTENTION_BACKEND"),
    ("v0-engine", B70, env(VLLM_USE_V1="0"), "warn", "env.VLLM_USE_V1"),
    ("fork-moe", B70, env(VLLM_XPU_USE_LLM_SCALER_MOE="1"), "warn", "env.VLLM_XPU_USE_LLM_SCALER_MOE"),
    ("fork-moe-ws", B70, env(VLLM_XPU_USE_LLM_SCALER_MOE_WS="1"), "warn", "env.VLLM_XPU_USE_LLM_SCALER_MOE_WS"),
    ("fork-allreduce", B70, env(VLLM_XPU_COMPILE_ALLREDUCE_CUSTOM_OP="1"), "warn",
     "env.VLLM_XPU_COMPILE_ALLREDUCE_CUSTOM_OP"),
    ("fork-minimax", B70, env(VLLM_MINIMAX_QK_RMS_XPU_HELPER="1"), "warn", "env.VLLM_MINIMAX_QK_RMS_XPU_HELPER"),
    ("fork-comm", ONE, env(VLLM_XPU_FORCE_GRAPH_WITH_COMM="1"), "warn", "env.VLLM_XPU_FORCE_GRAPH_WITH_COMM"),
    ("fork-noop", B70, env(VLLM_XPU_GRAPH_NOOP_COMM_CAPTURE="1"), "warn", "env.VLLM_XPU_GRAPH_NOOP_COMM_CAPTURE"),
    ("open-pull-request", B60, env(VLLM_XPU_USE_CUSTOM_ALLREDUCE="1"), "warn", "env.VLLM_XPU_USE_CUSTOM_ALLREDUCE"),
    ("image-only", B70, env(VLLM_XPU_ALLREDUCE_RETRY_ON_NAN="1"), "warn", "env.VLLM_XPU_ALLREDUCE_RETRY_ON_NAN"),
    ("image-only-offload", B70, env(VLLM_OFFLOAD_WEIGHTS_BEFORE_QUANT="1"), "warn",
     "env.VLLM_OFFLOAD_WEIGHTS_BEFORE_QUANT"),
    ("build-time-only", B70, env(VLLM_PAGED_DECODE_CONFIG="x"), "warn", "env.VLLM_PAGED_DECODE_CONFIG"),
    ("torch-ccl-only", B70, env(TORCH_LLM_ALLREDUCE="1"), "warn", "env.TORCH_LLM_ALLREDUCE"),
    ("old-filter", B70, env(SYCL_DEVICE_FILTER="level_zero:gpu"), "warn", "env.SYCL_DEVICE_FILTER"),
    ("old-backend", ONE, env(SYCL_BE="PI_LEVEL_ZERO"), "warn", "env.SYCL_BE"),
    ("old-prefix", B70, env(SYCL_PI_LEVEL_ZERO_USE_IMMEDIATE_COMMANDLISTS="1"), "warn",
     "env.SYCL_PI_LEVEL_ZERO_USE_IMMEDIATE_COMMANDLISTS"),
    ("v2-key-on-v1", B70, env(UR_L0_V2_FORCE_DISABLE_COPY_OFFLOAD="1", SYCL_UR_USE_LEVEL_ZERO_V2="0"), "warn",
     "env.UR_L0_V2_FORCE_DISABLE_COPY_OFFLOAD"),
    ("neo-host-pool", B70, env(EnableHostUsmAllocationPool="0"), "warn", "env.EnableHostUsmAllocationPool"),
    ("neo-direct", ONE, env(EnableDirectSubmission="0"), "warn", "env.EnableDirectSubmission"),
    ("neo-gate-closed", B70, env(NEOReadDebugKeys="0", RenderCompressedBuffersEnabled="0"), "warn",
     "env.RenderCompressedBuffersEnabled"),
    ("rank-without-launcher", B70, env(CCL_LOCAL_SIZE="4"), "warn", "env.CCL_LOCAL_SIZE"),
    ("old-library-ll", B70, {**env(CCL_SYCL_ALLREDUCE_LL_THRESHOLD="8192"), "libraries/1/version": "2021.14.0"}, "warn",
     "env.CCL_SYCL_ALLREDUCE_LL_THRESHOLD"),
    ("old-library-recording", B70, {**env(CCL_SYCL_FORCE_RECORDING_PATH="1"), "libraries/1/version": "2021.13.1"},
     "warn", "env.CCL_SYCL_FORCE_RECORDING_PATH"),
    ("library-strings", NO_P2P, {"libraries/1/env_names": ["CCL_ATL_TRANSPORT", "CCL_SYCL_ALLTOALL_TMP_BUF",
     "CCL_SYCL_ALLGATHERV_SIMPLE_THRESHOLD", "CCL_SYCL_REDUCE_SCATTER_SIMPLE_THRESHOLD"]}, "warn",
     "env.CCL_SYCL_ALLREDUCE_SIMPLE_THRESHOLD"),
    ("xccl-too-old", B70, {**env(TORCH_XCCL_BLOCKING_WAIT="1"), "python/packages/torch": "2.7.1+xpu"}, "warn",
     "env.TORCH_XCCL_BLOCKING_WAIT"),
    ("graph-variable-030-to-031", ONE, {**env(VLLM_XPU_ENABLE_XPU_GRAPH="0"), "python/packages/vllm": "0.32.0",
     **plan(graph=False)}, "warn", "env.VLLM_XPU_ENABLE_XPU_GRAPH"),
    ("cuda-mask-on-xpu", ONE, {"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "warn", "env.CUDA_VISIBLE_DEVICES"),
    ("ze-mask-on-cuda", H200, {"env": {"ZE_AFFINITY_MASK": "0,1,2,3"}}, "warn", "env.ZE_AFFINITY_MASK"),
    # known to hurt ---------------------------------------------------------------------------------------------
    ("direct", B70, env(CCL_ALLREDUCE="direct"), "warn", "env.CCL_ALLREDUCE"),
    ("ring-range", B70, env(CCL_ALLREDUCE="ring:0-8192;topo:8193-max"), "warn", "env.CCL_ALLREDUCE"),
    ("allgatherv-ring", B70, env(CCL_ALLGATHERV="ring"), "warn", "env.CCL_ALLGATHERV"),
    ("reduce-scatter-direct", B70, env(CCL_REDUCE_SCATTER="direct"), "warn", "env.CCL_REDUCE_SCATTER"),
    ("workers-4", B70, env(CCL_WORKER_COUNT="4"), "error", "env.CCL_WORKER_COUNT"),
    ("worker-affinity", B70, env(CCL_WORKER_AFFINITY="4-7"), "warn", "env.CCL_WORKER_AFFINITY"),
    ("worker-memory", B70, env(CCL_WORKER_MEM_AFFINITY="0"), "warn", "env.CCL_WORKER_MEM_AFFINITY"),
    ("arc-path", B70, env(CCL_SYCL_ALLREDUCE_ARC="1"), "warn", "env.CCL_SYCL_ALLREDUCE_ARC"),
    ("copy-engine", B70, env(CCL_ZE_COPY_ENGINE="link"), "warn", "env.CCL_ZE_COPY_ENGINE"),
    ("copy-engine-h2d", B70, env(CCL_ZE_H2D_COPY_ENGINE="main"), "warn", "env.CCL_ZE_H2D_COPY_ENGINE"),
    ("copy-engine-sycl", B70, env(CCL_SYCL_COPY_ENGINE="1"), "warn", "env.CCL_SYCL_COPY_ENGINE"),
    ("copy-engine-ur", B70, env(UR_L0_USE_COPY_ENGINE="0"), "warn", "env.UR_L0_USE_COPY_ENGINE"),
    ("immediate-1", B70, env(UR_L0_USE_IMMEDIATE_COMMANDLISTS="1"), "warn", "env.UR_L0_USE_IMMEDIATE_COMMANDLISTS"),
    ("immediate-2", ONE, env(UR_L0_USE_IMMEDIATE_COMMANDLISTS="2"), "error", "env.UR_L0_USE_IMMEDIATE_COMMANDLISTS"),
    ("scope-events-2", B70, env(UR_L0_DEVICE_SCOPE_EVENTS="2"), "error", "env.UR_L0_DEVICE_SCOPE_EVENTS"),
    ("schedule-profile", B70, env(CCL_SCHED_PROFILE="1"), "warn", "env.CCL_SCHED_PROFILE"),
    ("output-event", B70, env(CCL_SYCL_OUTPUT_EVENT="0"), "warn", "env.CCL_SYCL_OUTPUT_EVENT"),
    ("reference-moe", B70, env(VLLM_XPU_FUSED_MOE_USE_REF="1"), "warn", "env.VLLM_XPU_FUSED_MOE_USE_REF"),
    ("validation-layer", B70, env(ZE_ENABLE_VALIDATION_LAYER="1"), "warn", "env.ZE_ENABLE_VALIDATION_LAYER"),
    ("xpu-fallback", B70, env(PYTORCH_ENABLE_XPU_FALLBACK="1"), "warn", "env.PYTORCH_ENABLE_XPU_FALLBACK"),
    ("segments", B70, env(PYTORCH_ALLOC_CONF="expandable_segments:True"), "warn", "env.PYTORCH_ALLOC_CONF"),
    ("fork-workers", B70, env(VLLM_WORKER_MULTIPROC_METHOD="fork"), "error", "env.VLLM_WORKER_MULTIPROC_METHOD"),
    ("nccl-shm", H200, env(NCCL_SHM_DISABLE="1"), "warn", "env.NCCL_SHM_DISABLE"),
    ("nccl-algo", H200, env(NCCL_ALGO="Ring"), "warn", "env.NCCL_ALGO"),
    ("nccl-proto", H200, env(NCCL_PROTO="Simple"), "warn", "env.NCCL_PROTO"),
    ("nccl-level", H200, env(NCCL_P2P_LEVEL="SYS"), "warn", "env.NCCL_P2P_LEVEL"),
    ("launch-blocking", H200, env(CUDA_LAUNCH_BLOCKING="1"), "warn", "env.CUDA_LAUNCH_BLOCKING"),
    ("deep-gemm-moe-h20", H200, every_card(4, name="NVIDIA H20", device_id="0x2329", memory_bytes=96 * GIB), "warn",
     "env.VLLM_MOE_USE_DEEP_GEMM"),
    ("deep-gemm-sm120", H200, every_card(4, name="NVIDIA RTX PRO 6000 Blackwell", device_id="0x2bb1",
     memory_bytes=96 * GIB), "warn", "env.VLLM_USE_DEEP_GEMM"),
    # transport -------------------------------------------------------------------------------------------------
    ("provider-shm", B70, env(FI_PROVIDER="shm"), "error", "env.FI_PROVIDER"),
    ("provider-cxi", B70, env(FI_PROVIDER="cxi"), "error", "env.FI_PROVIDER"),
    ("provider-alone", B70, env(FI_PROVIDER="ofi_rxm"), "error", "env.FI_PROVIDER"),
    ("provider-typo", B70, env(FI_PROVIDER="tpc"), "error", "env.FI_PROVIDER"),
    ("mpi-in-capitals", B70, env(CCL_ATL_TRANSPORT="MPI"), "error", "env.CCL_ATL_TRANSPORT"),
    ("two-interfaces", B70, env(FI_TCP_IFACE="eth0"), "warn", "env.FI_TCP_IFACE"),
    ("mpirun-shell", B70, env(I_MPI_ROOT="/opt/intel/mpi"), "warn", "env.I_MPI_ROOT"),
    ("slurm-shell", B70, {**env(PMI_RANK="0"), "env/CCL_ATL_TRANSPORT": ...}, "error", "env.PMI_RANK"),
    ("launcher-none", B70, env(CCL_PROCESS_LAUNCHER="none"), "error", "env.CCL_PROCESS_LAUNCHER"),
    ("local-size", B70, env(CCL_PROCESS_LAUNCHER="none", CCL_LOCAL_RANK="0", CCL_LOCAL_SIZE="2"), "error",
     "env.CCL_LOCAL_SIZE"),
    ("cpu-flavour", B70, env(CCL_CONFIGURATION="cpu"), "error", "env.CCL_CONFIGURATION"),
    # peers -----------------------------------------------------------------------------------------------------
    ("forced-at-tp4", B70, {"peer_access": MATRIX}, "error", "env.CCL_TOPO_P2P_ACCESS"),
    ("forced-over-pairs", B70, {"peer_access": PAIRS}, "error", "env.CCL_TOPO_P2P_ACCESS"),
    ("refused-unset", B70, {"peer_access": MATRIX, "env/CCL_TOPO_P2P_ACCESS": ...}, "warn", "peer_access"),
    ("off-at-tp2", B60, env(CCL_TOPO_P2P_ACCESS="0"), "warn", "env.CCL_TOPO_P2P_ACCESS"),
    ("threshold-too-small", NO_P2P, env(CCL_SYCL_ALLREDUCE_SIMPLE_THRESHOLD="1048576"), "warn",
     "env.CCL_SYCL_ALLREDUCE_SIMPLE_THRESHOLD"),
    # containers ------------------------------------------------------------------------------------------------
    ("container-no-ptrace", B60, {"os/in_container": True, "os/capabilities": [], "os/seccomp": True}, "warn",
     "os.capabilities"),
    ("host-yama-1", B60, {"os/capabilities": [], "os/yama_ptrace_scope": 1}, "warn", "os.yama_ptrace_scope"),
    ("no-by-path", B60, {"os/in_container": True, "os/dri_by_path": False}, "warn", "os.dri_by_path"),
    ("drmfd-without-by-path", B60, {**env(CCL_ZE_IPC_EXCHANGE="drmfd"), "os/dri_by_path": False}, "error",
     "env.CCL_ZE_IPC_EXCHANGE"),
    ("pidfd-overridden", B60, {**env(CCL_ZE_IPC_EXCHANGE="pidfd"), "os/in_container": True, "os/capabilities": [],
     "os/seccomp": True}, "warn", "env.CCL_ZE_IPC_EXCHANGE"),
    ("shm-1-gib", B70, {"os/in_container": True, "os/shm_bytes": GIB}, "warn", "os.shm_bytes"),
    ("shm-none", B60, {"os/shm_bytes": 0}, "error", "os.shm_bytes"),
    ("shm-cuda", H200, {"os/in_container": True, "os/shm_bytes": 64 << 20}, "warn", "os.shm_bytes"),
    # host ------------------------------------------------------------------------------------------------------
    ("kernel-5-15", B60, {"os/kernel": "5.15.0-140-generic"}, "error", "os.kernel"),
    ("kernel-6-12-g31", B70, {"os/kernel": "6.12.10-amd64"}, "error", "os.kernel"),
    ("kernel-6-11-g21", B60, {"os/kernel": "6.11.0-9-generic"}, "warn", "os.kernel"),
    ("kernel-6-16-g31", ONE, {"os/kernel": "6.16.3"}, "warn", "os.kernel"),
    ("iommu-translated", B70, {"os/iommu": "translated"}, "warn", "os.iommu"),
    ("iommu-nvidia-pcie", H200, {"os/iommu": "on", **every_card(4, name="NVIDIA L40S", device_id="0x26b9"),
     **plan(max_model_len=4096)}, "warn", "os.iommu"),
    ("ram-equal-no-swap", B60, {"os/ram_bytes": 48 * GIB, "os/swap_bytes": 0}, "warn", "os.ram_bytes"),
    ("ram-16-behind-32", ONE, {"os/ram_bytes": 16 * GIB, "os/swap_bytes": 0}, "warn", "os.ram_bytes"),
    # selection -------------------------------------------------------------------------------------------------
    ("mask-three", B70, env(ZE_AFFINITY_MASK="0,1,2"), "error", "env.ZE_AFFINITY_MASK"),
    ("mask-twice", B70, env(ZE_AFFINITY_MASK="0,1,1,2"), "error", "env.ZE_AFFINITY_MASK"),
    ("mask-beyond", B60, env(ZE_AFFINITY_MASK="0,2"), "error", "env.ZE_AFFINITY_MASK"),
    ("mask-words", B60, env(ZE_AFFINITY_MASK="gpu0,gpu1"), "error", "env.ZE_AFFINITY_MASK"),
    ("selector-number", B60, env(ONEAPI_DEVICE_SELECTOR="0,1"), "error", "env.ONEAPI_DEVICE_SELECTOR"),
    ("selector-gpu", B60, env(ONEAPI_DEVICE_SELECTOR="gpu"), "error", "env.ONEAPI_DEVICE_SELECTOR"),
    ("selector-backend-typo", B60, env(ONEAPI_DEVICE_SELECTOR="levelzero:0,1"), "error",
     "env.ONEAPI_DEVICE_SELECTOR"),
    ("selector-cpu", B60, env(ONEAPI_DEVICE_SELECTOR="level_zero:cpu"), "error", "env.ONEAPI_DEVICE_SELECTOR"),
    ("selector-opencl-star", B70, env(ONEAPI_DEVICE_SELECTOR="opencl:*"), "error", "env.ONEAPI_DEVICE_SELECTOR"),
    ("selector-after-mask", B70, {**env(ZE_AFFINITY_MASK="2,3", ONEAPI_DEVICE_SELECTOR="level_zero:2,3"),
     **plan(tp=2), "model": {}}, "error", "env.ONEAPI_DEVICE_SELECTOR"),
    ("selector-two-of-four", B70, env(ONEAPI_DEVICE_SELECTOR="level_zero:0;level_zero:1"), "error",
     "env.ONEAPI_DEVICE_SELECTOR"),
    ("cuda-mask-short", H200, env(CUDA_VISIBLE_DEVICES="0,1"), "error", "env.CUDA_VISIBLE_DEVICES"),
    ("cuda-mask-none", H200, env(CUDA_VISIBLE_DEVICES=""), "error", "env.CUDA_VISIBLE_DEVICES"),
    ("too-few-cards", B60, {**plan(tp=4), "env/ZE_AFFINITY_MASK": ..., "env/ONEAPI_DEVICE_SELECTOR": ...}, "error",
     "plan.tp"),
    ("no-card-at-all", ONE, {"gpus": []}, "error", "gpus"),
    # runtimes --------------------------------------------------------------------------------------------------
    ("two-loaders", B70, {"libraries+": [{"name": "libze_loader.so.1", "path": "opt/oneapi/lib/libze_loader.so.1",
     "version": "1.24.0"}]}, "error", "libraries"),
    ("two-libccl-generations", B70, {"libraries+": [{"name": "libccl.so.2", "path": "opt/lib/libccl.so.2",
     "version": "2022.1.2"}]}, "error", "libraries"),
    ("two-nccl", H200, {"libraries+": [{"name": "libnccl.so.2", "path": "usr/lib/libnccl.so.2", "version": "2.27.3"}]},
     "error", "libraries"),
    ("sycl-of-2026", B70, {"libraries/0/name": "libsycl.so.9", "libraries/0/version": "2026.0.0"}, "error",
     "libraries"),
    ("oneccl-2022-0-b60", B60, {"libraries/1/version": "2022.0.0"}, "warn", "libraries"),
    ("both-tritons", B70, {"python/packages/triton": "3.6.0"}, "warn", "python.packages.triton"),
    ("ipex", B70, {"python/packages/intel-extension-for-pytorch": "2.8.10"}, "warn",
     "python.packages.intel-extension-for-pytorch"),
    ("torch-ccl", B70, {"python/packages/oneccl-bind-pt": "2.8.0"}, "warn", "python.packages.oneccl-bind-pt"),
    ("vllm-0-17", B70, {"python/packages/vllm": "0.17.0"}, "warn", "python.packages.vllm"),
    ("torch-2-9-b60", B60, {"python/packages/torch": "2.9.1+xpu"}, "warn", "python.packages.torch"),
    ("driver-too-old", B70, {"libraries/3/version": "26.05.37020"}, "warn", "libraries"),
    ("torch-of-cuda", B70, {"python/packages/torch": "2.11.0+cu130"}, "error", "python.packages.torch"),
    ("sourced-oneapi", B70, env(CCL_ROOT="/opt/intel/oneapi/ccl/2022.0"), "warn", "env.CCL_ROOT"),
    ("foreign-path", B70, env(LD_LIBRARY_PATH="/opt/intel/oneapi/compiler/2026.0/lib"), "warn", "env.LD_LIBRARY_PATH"),
    ("foreign-loader", B70, env(CCL_ZE_LIBRARY_PATH="/opt/lib/libze_loader.so.1"), "warn", "env.CCL_ZE_LIBRARY_PATH"),
    # graphs ----------------------------------------------------------------------------------------------------
    ("graph-vllm-0-21", B70, {**GRAPH_OK, "python/packages/vllm": "0.21.0"}, "error", "plan.graph"),
    ("graph-vllm-0-20", B70, {**GRAPH_OK, "python/packages/vllm": "0.20.1"}, "error", "plan.graph"),
    ("graph-torch-2-10", ONE, {**plan(graph=True, cudagraph_capture_sizes=[1, 2]), "env/VLLM_XPU_ENABLE_XPU_GRAPH": "1",
     "python/packages/torch": "2.10.0+xpu"}, "error", "plan.graph"),
    ("graph-vllm-0-31-tp4", B70, {**GRAPH_OK, "python/packages/vllm": "0.31.0", "env/VLLM_XPU_ENABLE_XPU_GRAPH": ...},
     "warn", "plan.graph"),
    ("graph-2-14-old-driver", ONE, {**plan(graph=True, cudagraph_capture_sizes=[1, 2]),
     "python/packages/vllm": "0.32.0", "python/packages/torch": "2.14.0+xpu", "libraries/0/name": "libsycl.so.9",
     "libraries/0/version": "2026.1.1", "libraries/2/version": "1.32.0"}, "error", "plan.graph"),
    ("graph-default-on", B70, {"plan/graph": ..., "python/packages/vllm": "0.32.0"}, "warn", "plan.graph"),
    ("graph-without-variable", ONE, plan(graph=True, cudagraph_capture_sizes=[1, 2, 4]), "warn",
     "env.VLLM_XPU_ENABLE_XPU_GRAPH"),
    ("graph-automatic-kv", B70, {**GRAPH_OK, **plan(kv_cache_memory_bytes=None)}, "warn",
     "plan.kv_cache_memory_bytes"),
    ("graph-default-sizes", ONE, {**plan(graph=True, cudagraph_capture_sizes=None),
     "env/VLLM_XPU_ENABLE_XPU_GRAPH": "1"}, "warn", "plan.cudagraph_capture_sizes"),
    ("graph-up-to-16", B70, {**GRAPH_OK, **plan(cudagraph_capture_sizes=[1, 2, 4, 8, 16])}, "warn",
     "plan.cudagraph_capture_sizes"),
    ("graph-1024-tokens", B70, {**GRAPH_OK, **plan(max_num_batched_tokens=1024)}, "warn",
     "plan.max_num_batched_tokens"),
    ("graph-old-adapter", B70, {**GRAPH_OK, **env(SYCL_UR_USE_LEVEL_ZERO_V2="0")}, "warn",
     "env.SYCL_UR_USE_LEVEL_ZERO_V2"),
    ("graph-nan-check", B70, {**GRAPH_OK, **env(TORCH_XCCL_NAN_CHECK="1")}, "warn", "env.TORCH_XCCL_NAN_CHECK"),
    # plans that the model forbids ------------------------------------------------------------------------------
    ("tp6", B70, {"plan/tp": 6, "gpus": ..., "env": {}, "peer_access": ...}, "error", "plan.tp"),
    ("tp5-dense", ONE, {**plan(tp=5), "gpus": ..., "env": {}}, "error", "plan.tp"),
    ("tp8-fp8", H200, {**plan(tp=8), "gpus": ..., "peer_access": ...}, "error", "plan.tp"),
    ("group-of-256", B70, {"model/quantization_config/group_size": 256}, "error", "plan.tp"),
    ("dcp4", B70, plan(dcp=4), "error", "plan.dcp"),
    ("dcp3", B70, plan(dcp=3), "error", "plan.dcp"),
    ("kv-one-block-short", B70, plan(kv_cache_memory_bytes=2048 * 63488 - 1), "error", "plan.kv_cache_memory_bytes"),
    ("kv-negative", B70, plan(kv_cache_memory_bytes=-1), "error", "plan.kv_cache_memory_bytes"),
    ("kv-beyond-the-card", B70, plan(kv_cache_memory_bytes=8 * GIB), "error", "plan.kv_cache_memory_bytes"),
    ("the-whole-context", B70, plan(max_model_len=196608), "error", "plan.max_model_len"),
    ("longer-than-the-model", ONE, plan(max_model_len=65536), "error", "plan.max_model_len"),
    ("tokens-below-sequences", ONE, plan(max_num_batched_tokens=8), "error", "plan.max_num_batched_tokens"),
    ("chunked-off", B70, plan(enable_chunked_prefill=False), "error", "plan.enable_chunked_prefill"),
    ("two-cards-for-minimax", B70, {**plan(tp=2), "env": {}}, "error", "gpus"),
    # types and backends ----------------------------------------------------------------------------------------
    ("kv-e5m2", B70, plan(kv_cache_dtype="fp8_e5m2"), "error", "plan.kv_cache_dtype"),
    ("kv-int8", B70, plan(kv_cache_dtype="int8"), "error", "plan.kv_cache_dtype"),
    ("kv-e4m3", B70, plan(kv_cache_dtype="fp8_e4m3"), "warn", "plan.kv_cache_dtype"),
    ("kv-e5m2-on-fp8", H200, plan(kv_cache_dtype="fp8_e5m2"), "error", "plan.kv_cache_dtype"),
    ("kv-nonsense-cuda", H200, plan(kv_cache_dtype="fp4"), "error", "plan.kv_cache_dtype"),
    ("attention-flex", B70, plan(attention_backend="FLEX_ATTENTION"), "error", "plan.attention_backend"),
    ("attention-mla", B70, plan(attention_backend="TRITON_MLA"), "error", "plan.attention_backend"),
    ("attention-rocm", B70, plan(attention_backend="ROCM_ATTN"), "error", "plan.attention_backend"),
    ("attention-typo", H200, plan(attention_backend="FLASHATTN"), "error", "plan.attention_backend"),
    ("attention-lower-case", B70, plan(attention_backend="triton_attn"), "warn", "plan.attention_backend"),
    ("dtype-fp8", B70, plan(dtype="fp8"), "error", "plan.dtype"),
    ("bf16-on-a770", ONE, {**every_card(1, name="Intel(R) Arc(TM) A770 Graphics", device_id="0x56a0",
     memory_bytes=16 * GIB, bar_bytes=16 * GIB), **plan(dtype="bfloat16", max_model_len=2048)}, "error", "plan.dtype"),
    ("experts-2-bit", B70, {"model/quantization_config/bits": 2}, "error", "model.quantization_config"),
    ("experts-3-bit", B70, {"model/quantization_config/bits": 3}, "error", "model.quantization_config"),
    ("experts-asymmetric", B70, {"model/quantization_config/sym": False}, "error", "model.quantization_config"),
    ("experts-desc-act", B70, {"model/quantization_config": {**GPTQ_MOE, "desc_act": True}}, "error",
     "model.quantization_config"),
    ("experts-group-64", B70, {"model/quantization_config/group_size": 64}, "warn", "model.quantization_config"),
    ("experts-w8-compressed", B70, {"model/quantization_config": W4}, "error", "model.quantization_config"),
    ("bitsandbytes", ONE, {"model/quantization_config": {"quant_method": "bitsandbytes"}}, "error",
     "model.quantization_config"),
    ("ngram", B70, plan(speculative_method="ngram"), "warn", "plan.speculative_method"),
    ("dflash", B70, plan(speculative_method="dflash"), "warn", "plan.speculative_method"),
    ("speculative-typo", B70, plan(speculative_method="eagel3"), "error", "plan.speculative_method"),
    ("mtp-on-cuda", H200, plan(speculative_method="mtp"), "error", "plan.speculative_method"),
    ("deepseek-mtp", B70, plan(speculative_method="deepseek_mtp"), "error", "plan.speculative_method"),
    # measured slower -------------------------------------------------------------------------------------------
    ("block-256", B70, plan(block_size=256), "warn", "plan.block_size"),
    ("block-16", B70, plan(block_size=16), "error", "plan.block_size"),
    ("pp4", B70, plan(tp=1, pp=4), "warn", "plan.pp"),
    ("expert-parallel-b60", B60, {**plan(enable_expert_parallel=True), "model": {}}, "warn",
     "plan.enable_expert_parallel"),
    ("torch-profiler", B70, plan(profiler="torch"), "warn", "plan.profiler"),
    # checkpoint ------------------------------------------------------------------------------------------------
    ("router-g-idx", B70, {"model/tensor_names+": [GATE + "g_idx"]}, "error", "model.tensor_names"),
    ("router-packed", B70, {"model/tensor_names+": [GATE + "weight_packed", GATE + "weight_scale"]}, "error",
     "model.tensor_names"),
    ("router-fp8", H200, {"model/tensor_names+": [GATE + "weight_scale_inv"]}, "error", "model.tensor_names"),
    ("router-other-naming", B70, {"model/tensor_names+": ["model.layers.3.mlp.gate.qweight",
     "model.layers.3.mlp.gate.scales"]}, "error", "model.tensor_names"),
    ("norm-quantised", B70, {"model/tensor_names+": ["model.layers.3.input_layernorm.qzeros"]}, "error",
     "model.tensor_names"),
    ("scales-lost", B70, {"model/tensor_names+": ["model.layers.3.block_sparse_moe.experts.7.w1.qweight"]}, "error",
     "model.tensor_names"),
    ("fp8-scales-lost", H200, {"model/tensor_names+": ["model.layers.3.block_sparse_moe.experts.7.w1.weight"]},
     "error", "model.tensor_names"),
    ("config-without-quantisation", B70, {"model/quantization_config": ..., "gpus": ..., "env": {}}, "error",
     "model.quantization_config"),
    ("shards-missing", B70, {"model/shards_missing": ["model-00007-of-00026.safetensors"]}, "error",
     "model.shards_missing"),
    ("index-broken", B70, {"model": {"index_error": "model.safetensors.index.json: no JSON"}}, "error",
     "model.index_error"),
    # parsers ---------------------------------------------------------------------------------------------------
    ("tool-qwen", B70, plan(tool_call_parser="qwen3_coder"), "warn", "plan.tool_call_parser"),
    ("tool-m3", B70, plan(tool_call_parser="minimax_m3"), "warn", "plan.tool_call_parser"),
    ("tool-typo", B70, plan(tool_call_parser="minimax-m2"), "error", "plan.tool_call_parser"),
    ("reasoning-qwen", B70, plan(reasoning_parser="qwen3"), "warn", "plan.reasoning_parser"),
    ("reasoning-typo", B70, plan(reasoning_parser="minimax_m2_think"), "error", "plan.reasoning_parser"),
    ("reasoning-on-0-11", H200, {"python/packages/vllm": "0.11.0"}, "error", "plan.reasoning_parser"),
    ("minimax-tools-for-qwen", ONE, plan(tool_call_parser="minimax_m2"), "warn", "plan.tool_call_parser"),
    ("asked-vllm", B70, {"python/parsers": {"tool": ["hermes"], "reasoning": ["minimax_m2"]}}, "error",
     "plan.tool_call_parser"),
    # cards -----------------------------------------------------------------------------------------------------
    ("bar-256-everywhere", B70, every_card(4, bar_bytes=256 << 20), "warn", "gpus"),
    ("bar-half", B70, {"gpus/2/bar_bytes": 16 * GIB}, "warn", "gpus[2].bar_bytes"),
    ("link-x4", B60, {"gpus/1/link_width": 4}, "warn", "gpus[1].link_width"),
    ("link-gen2", B70, {"gpus/3/link_gts": 5.0}, "warn", "gpus[3].link_gts"),
    ("link-x1-h200", H200, {"gpus/1/link_width": 1}, "warn", "gpus[1].link_width"),
    ("guc-one-card", B70, {"gpus/2/guc": "70.58.0"}, "warn", "gpus[2].guc"),
    ("display-last-card", B70, {"gpus/3/display_attached": True}, "warn", "gpus[3].display_attached"),
    ("mixed-b580", B60, {"gpus/1/name": "Intel(R) Arc(TM) B580 Graphics", "gpus/1/device_id": "0xe20b",
     "gpus/1/memory_bytes": 12 * GIB, "gpus/1/bar_bytes": 16 * GIB}, "warn", "gpus"),
    ("b580-too-small", ONE, every_card(1, name="Intel(R) Arc(TM) B580 Graphics", device_id="0xe20b",
     memory_bytes=12 * GIB, bar_bytes=16 * GIB), "error", "gpus"),
    ("product-wrong", B70, {"gpus/1/gemm_exact": False}, "error", "gpus[1].gemm_exact"),
    ("fp8-on-a100", H200, {**every_card(4, name="NVIDIA A100-SXM4-80GB", device_id="0x20b2", memory_bytes=80 * GIB)},
     "warn", "model.quantization_config"),
)  # fmt: skip

# settings that are right, or at their default: no error, no warning
HEALTHY: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("no-p2p-zero", B70, {"peer_access": MATRIX, **env(CCL_TOPO_P2P_ACCESS="0")}),
    ("pidfd-where-it-works", B70, env(CCL_ZE_IPC_EXCHANGE="pidfd")),
    ("topo", B70, env(CCL_ALLREDUCE="topo")),
    ("thresholds-at-default", B70, env(CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD="524288", CCL_ENABLE_SYCL_KERNELS="1",
                                       CCL_WORKER_COUNT="1", CCL_ZE_CACHE="1")),
    ("stable-profile", B70, env(CCL_ZE_CACHE_OPEN_IPC_HANDLES="0", SYCL_UR_USE_LEVEL_ZERO_V2="0", NEOReadDebugKeys="1",
                                RenderCompressedBuffersEnabled="0", EnableHostUsmAllocationPool="0")),
    ("enum-in-capitals", B70, env(CCL_ATL_TRANSPORT="OFI")),
    ("cache-and-sysman", B70, env(SYCL_CACHE_PERSISTENT="1", ZES_ENABLE_SYSMAN="1")),
    ("relaxed-limits", B70, env(UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS="1")),
    ("nvls-off", H200, env(NCCL_NVLS_ENABLE="0")),
    ("multicast-off", H200, env(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1",
                                VLLM_ALLREDUCE_USE_SYMM_MEM="0")),
    ("p2p-off-on-pcie", H200, {**every_card(4, name="NVIDIA L40S", device_id="0x26b9"), **plan(max_model_len=4096),
                               **env(NCCL_P2P_DISABLE="1")}),
    ("ring-where-needed", B60, {"libraries/1/version": "2022.1.1", **env(CCL_ALLREDUCE="ring")}),
    ("selector-gpu", B70, env(ONEAPI_DEVICE_SELECTOR="level_zero:gpu")),
    ("selector-star", B70, env(ONEAPI_DEVICE_SELECTOR="*:gpu")),
    ("selector-minus", B70, env(ONEAPI_DEVICE_SELECTOR="level_zero:*;!level_zero:7")),
    ("mask-out-of-order", B70, env(ZE_AFFINITY_MASK="3,2,1,0")),
    ("graph-recipe", B70, GRAPH_OK),
    ("graph-triton", B70, {**GRAPH_OK, **plan(attention_backend="TRITON_ATTN")}),
    ("graph-4096", B70, {**GRAPH_OK, **plan(max_model_len=4096, kv_cache_memory_bytes=268435456)}),
    ("long-context", B70, plan(max_model_len=32768, kv_cache_memory_bytes=33792 * 63488)),
    ("gen4-x8", B70, every_card(4, link_gts=16, link_width=8)),
    ("iommu-passthrough", B70, {"os/iommu": "passthrough"}),
    ("iommu-on-nvlink", H200, {"os/iommu": "on"}),
    ("iommu-one-card", ONE, {"os/iommu": "on"}),
    ("shm-on-one-card", ONE, {"os/in_container": True, "os/shm_bytes": 64 << 20}),
    ("container-done-right", B70, {"os/in_container": True, "os/seccomp": True, "os/yama_ptrace_scope": 1}),
    ("kernel-7-1", B70, {"os/kernel": "7.1.0"}),
    ("kernel-6-14-intel", B70, {"os/kernel": "6.14.0-1011-intel"}),
    ("append-think", B70, plan(reasoning_parser="minimax_m2_append_think")),
    ("pairs-at-tp2", B60, {"peer_access": [[True, True], [True, True]]}),
    ("peers-unknown", B70, {"peer_access": ...}),
    ("expert-names-of-qwen", ONE, {"model/tensor_names": ["model.layers.0.mlp.gate_proj.qweight",
                                   "model.layers.0.mlp.gate_proj.scales", "model.layers.0.mlp.gate_up_proj.weight"]}),
    ("foreign-names", B70, env(NCCL_P2P_DISABLE="1", VLLM_USE_DEEP_GEMM="0", CUDA_VISIBLE_DEVICES="0,1,2,3")),
    ("vllm-name-known", B70, env(VLLM_LOGGING_LEVEL="DEBUG", VLLM_CACHE_ROOT="/var/cache/vllm")),
    ("tp8-fp8-on-0-32", H200, {**plan(tp=8), "gpus": ..., "peer_access": ..., "python/packages/vllm": "0.32.0"}),
    ("ep-for-tp8", H200, {**plan(tp=8, enable_expert_parallel=True), "gpus": ..., "peer_access": ...}),
)  # fmt: skip
