"""Lines that people paste, and what they are about: each message of the table once at least, in several wordings."""

from __future__ import annotations

from pathlib import Path

ERROR = "(Worker_TP1 pid=171) ERROR 11-12 09:18:57 [multiproc_executor.py:912] "
CCL = "2026:11:12-09:14:45:(  170) |CCL_ERROR| "

# (line, about)
_MORE = (Path(__file__).parent / "cases" / "lines.txt").read_text(encoding="utf-8").splitlines()
LINES: tuple[tuple[str, str], ...] = (
    *((line, about) for about, _, line in (row.partition("\t") for row in _MORE if not row.startswith("#"))),
    (CCL + "env_parser.hpp:49 env_2_type: EXCEPTION: CCL_ZE_IPC_EXCHANGE: unexpected value: socket, expected values: "
     "pidfd, drmfd, sockets", "env.CCL_ZE_IPC_EXCHANGE"),
    ("  what():  oneCCL: env_parser.hpp:49 env_2_type: EXCEPTION: CCL_ATL_TRANSPORT: unexpected value: tcp, expected "
     "values: mpi, ofi", "env.CCL_ATL_TRANSPORT"),
    ("  what():  oneCCL: CCL_ALLGATHERV: unknown algorithm name: fast, supported: topo, ring", "env.CCL_ALLGATHERV"),
    ("oneCCL: selector.cpp: EXCEPTION: unknown algorithm name: rings", "env.CCL_ALLREDUCE"),
    ("WARNING 11-12 09:13:58 [envs.py:1901] Unknown vLLM environment variable detected: VLLM_ATTENTION_BACKEND",
     "env.VLLM_ATTENTION_BACKEND"),
    ("MPIDI_GPU_init(268)...............: gpu_init failed", "env.CCL_ATL_TRANSPORT"),
    (CCL + "could not find interface to connect", "env.CCL_KVS_IFACE"),
    ("oneCCL: pmi_resizable_simple.cpp: can't find interface for KVS", "env.CCL_KVS_IFACE"),
    (CCL + "atl_ofi.cpp:600 open_providers: fi_getinfo error: ret -61, providers 0", "env.FI_PROVIDER"),
    ("oneCCL: atl_ofi.cpp: EXCEPTION: can not find any providers", "env.FI_PROVIDER"),
    (ERROR + "RuntimeError: oneCCL: ze_call.cpp:28: ze error at zeMemOpenIpcHandle, code: "
     "ZE_RESULT_ERROR_INVALID_ARGUMENT", "peer_access"),
    ("2026:11:12-09:14:45:(  170) |CCL_WARN| pidfd is not supported, fallbacks to drmfd exchange mode",
     "os.capabilities"),
    (CCL + "pidfd_getfd failed: Operation not permitted, check /proc/sys/kernel/yama/ptrace_scope",
     "os.yama_ptrace_scope"),
    (CCL + "ze_fd_manager.cpp:159 init_device_fds: opendir failed: could not open device directory",
     "os.dri_by_path"),
    (CCL + "ze_fd_manager.cpp: could not get device_fd for device 0", "os.dri_by_path"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/dev/dri/by-path'", "os.dri_by_path"),
    ("failed to open /dev/dri/renderD128: Permission denied", "os.dri_by_path"),
    ("RuntimeError: zeInit failed: ZE_RESULT_ERROR_UNINITIALIZED", "gpus"),
    (ERROR + "RuntimeError: No XPU devices are available.", "gpus"),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/psm_1234'", "os.shm_bytes"),
    ("NCCL WARN Error: failed to extend /dev/shm/nccl-AbCd to 33030532 bytes, error: No space left on device (28)",
     "os.shm_bytes"),
    ("RuntimeError: unable to allocate shared memory segment of 4194304 bytes", "os.shm_bytes"),
    ("Fatal Python error: Bus error", "os.shm_bytes"),
    ("OSError: [Errno 28] No space left on device", "os.shm_bytes"),
    ("[ 88.1] DMAR: [DMA Read NO_PASID] Request device [03:00.0] fault addr 0xff", "os.iommu"),
    ("[ 3.1] xe 0000:03:00.0: [drm] Small BAR device", "gpus"),
    ("[ 99.3] pcieport 0000:00:01.0: AER: Correctable error message received from 0000:03:00.0", "gpus"),
    (ERROR + "TimeoutError: RPC call to sample_tokens timed out.", "peer_access"),
    ("[  101.2] Out of memory: Killed process 5121 (VLLM::Worker_TP) total-vm:1kB", "os.ram_bytes"),
    (ERROR + "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", "gpus"),
    ("ZE_RESULT_ERROR_DEVICE_LOST", "gpus"),
    ("[  812.1] xe 0000:03:00.0: [drm] GT0: Timedout job: seqno=1", "gpus"),
    ("[  812.1] xe 0000:03:00.0: [drm] Engine memory CAT error [18]: class=ccs", "gpus"),
    (ERROR + "RuntimeError: level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "gpus"),
    (ERROR + "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB", "gpus"),
    (ERROR + "ValueError: To serve at least one request with the models's max seq len (2048), (0.12 GiB KV cache is "
     "needed, which is larger than the available KV cache memory (0.05 GiB).", "plan.kv_cache_memory_bytes"),
    (ERROR + "ValueError: No available memory for the cache blocks.", "plan.kv_cache_memory_bytes"),
    ("WARNING [xpu.py:241] XPU Graph is disabled by environment variable, please set", "env.VLLM_XPU_ENABLE_XPU_GRAPH"),
    ("WARNING [xpu.py:233] XPU Graph doesn't support capture communication ops, disabling", "plan.graph"),
    (ERROR + "NotImplementedError: Capturing XCCL collectives is only allowed with oneCCL >= 2022.0.0", "plan.graph"),
    (ERROR + "    assert isinstance(self.device_communicator, CudaCommunicator)", "plan.graph"),
    (ERROR + "RuntimeError: The sycl_ext_oneapi_work_group_scratch_memory feature is not yet available", "plan.graph"),
    (ERROR + "RuntimeError: error: UR_RESULT_ERROR_UNSUPPORTED_FEATURE", "plan.graph"),
    ("WARNING FMHA sycl-tla kernels cannot be captured with XPU graphs, falling back", "plan.graph"),
    ("ImportError: libsycl.so.9: cannot open shared object file: No such file or directory", "libraries"),
    ("ImportError: libccl.so.2: cannot open shared object file", "libraries"),
    ("ImportError: _C.abi3.so: undefined symbol: __sycl_register_lib", "libraries"),
    ("ModuleNotFoundError: No module named 'vllm_xpu_kernels'", "python.packages.vllm-xpu-kernels"),
    (ERROR + "KeyError: 'layers.40.block_sparse_moe.gate.g_idx'", "model.tensor_names"),
    (ERROR + "KeyError: 'layers.3.mlp.gate.weight_packed'", "model.tensor_names"),
    (ERROR + "ValueError: There is no module or parameter named 'model.layers.62' in MiniMaxM2ForCausalLM",
     "model.tensor_names"),
    (ERROR + "ValueError: MTP speculative decoding layer 62 weights missing from checkpoint.", "model.tensor_names"),
    (ERROR + "ValueError: Following weights were not initialized from checkpoint: {'model.layers.62.x'}",
     "model.tensor_names"),
    (ERROR + "NotImplementedError: No WNA16 MoE backend supports the deployment configuration.",
     "model.quantization_config"),
    (ERROR + "ValueError: Quantization method specified in the model config (fp8) does not match the quantization "
     "method specified in the `quantization` argument (gptq).", "model.quantization_config"),
    (ERROR + "ValueError: Unsupported data type of kv cache: fp8_e5m2", "plan.kv_cache_dtype"),
    ("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp4'", "plan.kv_cache_dtype"),
    ("ValueError: Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` (4) to be greater than the "
     "model's total number of KV heads (8).", "plan.dcp"),
    ("tp_size=4 must be divisible by dcp_size=3.", "plan.dcp"),
    ("ValueError: The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = "
     "128.", "plan.tp"),
    ("ValueError: Total number of attention heads (48) must be divisible by tensor parallel size (5).", "plan.tp"),
    ("KeyError: 'invalid tool call parser: minimax (chose from {hermes})'", "plan.tool_call_parser"),
    ("KeyError: \"Reasoning parser 'minimax' not found. Available parsers: qwen3\"", "plan.reasoning_parser"),
    ("ValueError: Invalid attention backend for xpu, with use_mla: False", "plan.attention_backend"),
    ("ValueError: Unknown attention backend: 'FLASHATTN'. Valid options are: FLASH_ATTN", "plan.attention_backend"),
    ("NotImplementedError: Unsupported speculative method: 'mtp'", "plan.speculative_method"),
    ("ValueError: User-specified max_model_len (262144) is greater than the derived max_model_len",
    "plan.max_model_len"),
    ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0", "plan.dtype"),
    ("OSError: [Errno 98] error while attempting to bind: Address already in use", "plan.port"),
    ("transport/nvls.cc:254 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152",
     "env.NCCL_NVLS_ENABLE"),
    ("h200:101:205 [0] transport/nvls.cc:254 NCCL WARN Cuda failure 801 'operation not supported'",
     "env.NCCL_NVLS_ENABLE"),
    ("RuntimeError: CUDA driver error: multicast object could not be created: system not supported",
     "env.NCCL_NVLS_ENABLE"),
    ("RuntimeError: Assertion error (csrc/utils/layout.hpp:62): Unknown recipe", "env.VLLM_USE_DEEP_GEMM"),
    ("ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15')",
     "model.quantization_config"),
    ("INFO No available shared memory broadcast block found in 60 seconds. This typically happens", "peer_access"),
    ("[rank0]: Watchdog caught collective operation timeout: WorkXCCL(SeqNum=1)", "peer_access"),
    # the general rule: a complaint that names a variable or a file
    ("RuntimeError: failed to parse ZE_FLAT_DEVICE_HIERARCHY", "env.ZE_FLAT_DEVICE_HIERARCHY"),
    ("ERROR could not read /sys/class/drm/card0/device/tile0", "file./sys/class/drm/card0/device/tile0"),
    (ERROR + "xpu_moe.formats.quantization.UnsupportedCheckpoint: quantization_config.sym: got False, wanted true (an "
     "asymmetric checkpoint carries real zero points)", "model.quantization_config"),
    ("ValueError: Model architectures ['MiniMaxM2ForCausalLM'] are not supported for now. Supported architectures: [",
     "python.packages.vllm"),
    (ERROR + "ModuleNotFoundError: No module named 'vllm._xpu_C'", "python.packages.vllm"),
    ("ModuleNotFoundError: No module named 'vllm'", "python.packages.vllm"),
    ("RuntimeError: PyTorch was compiled without XPU support", "python.packages.torch"),
    ("AssertionError: Torch not compiled with CUDA enabled", "python.packages.torch"),
    ("AttributeError: module 'torch' has no attribute 'xpu'", "python.packages.torch"),
    (ERROR + "RuntimeError: Cannot re-initialize XPU in forked subprocess. To use XPU with multiprocessing, you must "
     "use the 'spawn' start method", "env.VLLM_WORKER_MULTIPROC_METHOD"),
    ("/root/.triton/cache/x/main.cpp:5:10: fatal error: Python.h: No such file or directory", "python.version"),
    ("huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name': '/models/x'", "model"),
    ("RuntimeError: unable to mmap 4294967296 bytes from file </dev/shm/x>: Cannot allocate memory (12)",
     "os.ram_bytes"),
    ("socket.gaierror: [Errno -2] Name or service not known", "env.GLOO_SOCKET_IFNAME"),
    ("RuntimeError: [Gloo] connectFullMesh failed with [third_party/gloo/pair.cc:144]", "env.GLOO_SOCKET_IFNAME"),
    ("IGC: Internal Compiler Error: Floating point exception", "os.compute_runtime"),
    ("!!!!!!! Segfault encountered !!!!!!!  Segmentation fault (core dumped)", "libraries"),
    ("xe 0000:03:00.0: [drm] *ERROR* GT0: reset failed (-ETIMEDOUT)", "gpus"),
    ("xe 0000:03:00.0: [drm] CRITICAL: Xe has declared device 0000:03:00.0 as wedged.", "gpus"),
)  # fmt: skip

# settings that a symptom is blamed on, when the log shows them
BLAMED = (
    ("CCL_TOPO_P2P_ACCESS", "0"), ("CCL_WORKER_COUNT", "2"), ("CCL_ALLREDUCE", "direct"),
    ("CCL_TOPO_FABRIC_VERTEX_CONNECTION_CHECK", "0"), ("CCL_ATL_TRANSPORT", "mpi"),
)  # fmt: skip
HARMLESS = (
    """WARNING 11-12 09:14:02 [_custom_ops.py:21] Failed to import from vllm._C with ModuleNotFoundError("No module """
    """named 'vllm._C'")""",
    "(APIServer pid=162) WARNING 11-29 21:24:48 [system_utils.py:255] Found ulimit of 20000 and failed to "
    "automatically increase with error current limit exceeds maximum limit. This can cause fd limit errors like "
    "`OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n",
    "INFO 11-12 09:14:02 [__init__.py:220] Automatically detected platform xpu.",
    "2026:11:12-09:14:45:(  170) |CCL_WARN| value of CCL_ATL_TRANSPORT changed to be ofi (default:mpi)",
    "|CCL_WARN| topology recognition shows PCIe connection between devices. If this is not correct, you can disable "
    "topology recognition, with CCL_TOPO_FABRIC_VERTEX_CONNECTION_CHECK=0. This will assume XeLinks across devices",
    "(Worker_TP0 pid=170) INFO 11-12 09:18:51 [gpu_model_runner.py:5347] Model loading took 28.1 GiB memory",
    "INFO:     Application startup complete.",
    "",
)
