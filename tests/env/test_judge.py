"""Findings about an environment, and silence where it is healthy."""

from __future__ import annotations

import pytest

from xpu_moe.env.judge import judge
from xpu_moe.env.profiles import Situation

NEW = {"vllm": "0.32.0", "oneccl": "2022.1.2", "oneapi": "2026.1.1", "torch": "2.14.0", "nccl": "2.29.7"}
OLD = {"vllm": "0.30.0", "oneccl": "2021.14.0", "oneapi": "2025.1.0", "torch": "2.7.0", "nccl": "2.15.1"}

FOUND = [
    # (environment, versions, peer access, kind, level, part of the sentence)
    ({"VLLM_XPU_ENABLE_XPU_GRAPH": "1"}, NEW, None, "not honoured", "warn", "use cudagraph_mode"),
    ({"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}, NEW, None, "not honoured", "warn", "--attention-backend"),
    ({"VLLM_USE_V1": "0"}, NEW, None, "not honoured", "warn", "vllm 0.32.0 does not read it"),
    ({"CCL_SYCL_FORCE_RECORDING_PATH": "1"}, OLD, None, "not honoured", "warn", "oneccl 2021.14.0 does not read it"),
    ({"TORCH_XCCL_BLOCKING_WAIT": "1"}, OLD, None, "not honoured", "warn", "torch 2.7.0"),
    ({"SYCL_DEVICE_FILTER": "gpu"}, NEW, None, "not honoured", "warn", "ONEAPI_DEVICE_SELECTOR"),
    ({"CCL_SYCL_SUB_COMMUNICATOR": "1"}, NEW, None, "not honoured", "warn", "CCL_SYCL_SUB_COMMUICATOR"),
    ({"CCL_TOPO_P2P_ACCESS": "true"}, NEW, None, "misread", "warn", "'true' becomes 0"),
    ({"CCL_ZE_CACHE": "yes"}, NEW, None, "misread", "error", "expected values: 0, 1"),
    ({"CCL_ALLREDUCE": "fastest"}, NEW, None, "misread", "error", "unknown algorithm name"),
    ({"CCL_ATL_TRANSPORT": "mpi"}, NEW, None, "caution", "error", "MPIDI_GPU_init"),
    ({"CCL_WORKER_COUNT": "2"}, NEW, None, "caution", "error", "SYCL kernels off"),
    ({"CCL_ALLREDUCE": "ring"}, NEW, None, "caution", "warn", "30 %"),
    ({"CCL_ZE_CACHE": "0"}, NEW, None, "caution", "warn", "39 %"),
    ({"ONEAPI_DEVICE_SELECTOR": "opencl:*"}, NEW, None, "caution", "error", "no Level Zero GPU"),
    ({"ONEAPI_DEVICE_SELECTOR": "0"}, NEW, None, "caution", "error", "no Level Zero GPU"),
    ({"CCL_TOPO_P2P_ACCESS": "1"}, NEW, False, "peers", "error", "broken"),
    ({"CCL_TOPO_P2P_ACCESS": "1"}, NEW, None, "peers", "info", "nobody has proved"),
    ({"CCL_TOPO_P2P_ACCESS": "0"}, NEW, True, "peers", "warn", "9 to 15 %"),
    ({"SYCL_UR_USE_LEVEL_ZERO_V2": "0", "VLLM_XPU_ENABLE_XPU_GRAPH": "1"}, {"vllm": "0.30"}, None, "conflict",
     "error", "cannot record a graph"),
    ({"CCL_ATL_TRANSPORT": "ofi", "I_MPI_ROOT": "/opt/mpi"}, NEW, None, "conflict", "error", "left over from mpirun"),
    ({"RenderCompressedBuffersEnabled": "0"}, NEW, None, "need", "warn", "needs NEOReadDebugKeys=1"),
    ({"CCL_PROCESS_LAUNCHER": "none"}, NEW, None, "need", "warn", "needs CCL_LOCAL_RANK"),
    ({"UR_L0_USE_IMMEDIATE_COMMANDLISTS": "0"}, NEW, None, "need", "warn", "v2 adapter ignores"),
    ({"CUDA_VISIBLE_DEVICES": "0,1"}, NEW, None, "device", "warn", "ZE_AFFINITY_MASK"),
    ({"NCCL_P2P_DISABLE": "1"}, NEW, None, "device", "info", "has no effect on xpu"),
    ({"CCL_ZE_CASHE": "0"}, NEW, None, "unknown", "warn", "did you mean CCL_ZE_CACHE?"),
]  # fmt: skip


@pytest.mark.parametrize("environ,versions,peers,kind,level,words", FOUND)
def test_it_is_said(environ, versions, peers, kind, level, words):
    findings = judge(environ, "xpu", versions, Situation(peer_access=peers))
    assert any(f.kind == kind and f.level == level and words in f.says for f in findings), findings


HEALTHY = [
    ({"CCL_TOPO_P2P_ACCESS": "1"}, "xpu", True),
    ({"CCL_TOPO_P2P_ACCESS": "0"}, "xpu", False),
    ({"CCL_ZE_IPC_EXCHANGE": "pidfd"}, "xpu", None),
    ({"CCL_ALLREDUCE": "topo"}, "xpu", None),
    ({"CCL_SYCL_ALLREDUCE_SMALL_THRESHOLD": "524288"}, "xpu", None),
    ({"CCL_WORKER_COUNT": "1", "CCL_FUSION": "0"}, "xpu", None),
    ({"NCCL_NVLS_ENABLE": "0"}, "cuda", None),
    ({"ZE_AFFINITY_MASK": "0,1", "ONEAPI_DEVICE_SELECTOR": "level_zero:0,1"}, "xpu", None),
    ({"PATH": "/bin", "HOME": "/root", "LD_LIBRARY_PATH": "/lib", "OMP_NUM_THREADS": "4"}, "xpu", None),
    ({"CUDA_VISIBLE_DEVICES": "", "CCL_LOG_LEVEL": "info"}, "cpu", None),
]


@pytest.mark.parametrize("environ,device,peers", HEALTHY)
def test_healthy_is_silent(environ, device, peers):
    assert judge(environ, device, NEW, Situation(peer_access=peers)) == ()


def test_an_installed_vllm_is_asked_for_its_names():
    situation = Situation(vllm_names=frozenset({"VLLM_LOGGING_LEVEL", "VLLM_HOST_IP"}))
    findings = judge({"VLLM_LOGING_LEVEL": "INFO", "VLLM_HOST_IP": "1.2.3.4"}, "xpu", {}, situation)
    assert [(f.kind, f.name) for f in findings] == [("unknown", "VLLM_LOGING_LEVEL")]
    assert "did you mean VLLM_LOGGING_LEVEL?" in findings[0].says
    patched = judge({"VLLM_XPU_GRAPH_FORCE_PIECEWISE": "1"}, "xpu", {}, situation)
    assert patched[0].kind == "not honoured"


def test_errors_come_first():
    findings = judge({"NCCL_P2P_DISABLE": "1", "CCL_ZE_CACHE": "0", "CCL_WORKER_COUNT": "2"}, "xpu", NEW)
    assert [f.level for f in findings] == ["error", "warn", "info"]
