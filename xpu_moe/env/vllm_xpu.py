"""vLLM, its XPU kernels, and what surrounds them."""

from __future__ import annotations

from xpu_moe.env.variable import Caution, Variable

_X = ("xpu",)
_ENVS = "vLLM source, vllm/envs.py"
_KERNELS = "vllm-project/vllm-xpu-kernels source"
_FORK = "forks and private patches; mainline vLLM knows it only where the installed envs.py has the name"
_IMAGE = "Intel's llm-scaler image"


def _fork(name: str, doc: str = "From forks and private patches.") -> Variable:
    return Variable(name, "str", doc, "vllm", devices=_X, source="steveseguin/llm-optimizations and forks",
                    only_in=_FORK, instead="the flag of the installed vLLM")  # fmt: skip


def _kernels(name: str, kind, doc: str, default: str | None, **more) -> Variable:
    return Variable(name, kind, doc, "xpu-kernels", default, devices=_X, source=_KERNELS, **more)


def _image(name: str, kind, doc: str, default: str | None = None) -> Variable:
    return Variable(name, kind, doc, "vllm", default, devices=_X, source="intel/llm-scaler", only_in=_IMAGE)


VARIABLES = (
    Variable("VLLM_WORKER_MULTIPROC_METHOD", "enum", "How workers are started.", "vllm", "fork, on XPU spawn",
             ("spawn", "fork"),
             {"default": "spawn"}, why="a forked process cannot use an initialised Level Zero or CUDA context; vLLM's "
             "XPU platform sets spawn where it is unset", source=f"{_ENVS}; intel/llm-scaler",
             cautions=(Caution("fork", "warn", "a forked worker cannot use an initialised device context"),)),
    Variable("VLLM_XPU_ENABLE_XPU_GRAPH", "bool", "Graphs on XPU.", "vllm", "0", profiles={"graph": "1"}, devices=_X,
             source="vllm-project/vllm#51600", honoured={"vllm": ">=0.17,<0.31"},
             why="0.21 forces it off when the world is larger than 1; from 0.31 graphs are on by default",
             instead="cudagraph_mode in --compilation-config"),
    *(_fork(name) for name in (
        "VLLM_XPU_GRAPH_FORCE_PIECEWISE", "VLLM_XPU_FORCE_GRAPH_WITH_COMM", "VLLM_XPU_GRAPH_NOOP_COMM_CAPTURE",
        "VLLM_XPU_USE_LLM_SCALER_MOE*", "VLLM_XPU_COMPILE_ALLREDUCE_*", "VLLM_MINIMAX_*",
    )),
    Variable("VLLM_XPU_USE_CUSTOM_ALLREDUCE", "bool", "All-reduce of two ranks over peer memory.", "vllm", "0",
             devices=_X, source="vllm-project/vllm-xpu-kernels#570; vllm-project/vllm#54768",
             only_in="two open pull requests"),
    Variable("VLLM_ATTENTION_BACKEND", "str", "Attention backend by name.", "vllm", honoured={"vllm": "<0.14"},
             source=f"{_ENVS} and its change log", why="only the generic line about an unknown variable is left",
             instead="--attention-backend"),
    Variable("VLLM_USE_V1", "bool", "Generation of the engine.", "vllm", "1", honoured={"vllm": "<=0.10"},
             source=_ENVS, why="V0 is gone: 0 is ignored or refused"),
    _kernels("VLLM_XPU_FUSED_MOE_USE_REF", "bool", "The reference MoE.", "0",
             why="slow; 1 separates the kernel from the rest in a diagnosis",
             cautions=(Caution("1", "warn", "the reference MoE is slow: for diagnosis only"),)),
    _kernels("VLLM_XPU_FUSED_MOE_USE_MXFP4_FP8", "bool", "Number format of the MoE.", "0"),
    _kernels("VLLM_XPU_FUSED_MOE_USE_NATIVE_MXFP8", "bool", "Number format of the MoE.", "1"),
    _kernels("VLLM_XPU_FUSED_MOE_USE_NATIVE_BLOCK_FP8", "bool", "Number format of the MoE.", "1"),
    _kernels("VLLM_XPU_SPEC_DECODE_MAX_QLEN", "int", "Longest query of speculative decoding.", "16"),
    _kernels("VLLM_CHUNK_PREFILL_CONFIG", "str", "Which prefill kernels are built.", None,
             only_in="the build of vllm-xpu-kernels", why="at build time only: no effect at run time"),
    _kernels("VLLM_PAGED_DECODE_CONFIG", "str", "Which decode kernels are built.", None,
             only_in="the build of vllm-xpu-kernels", why="at build time only: no effect at run time"),
    _image("VLLM_XPU_ALLREDUCE_RETRY_ON_NAN", "bool", "Repeat an all-reduce whose result holds NaN.", "0"),
    _image("VLLM_XPU_ALLREDUCE_GUARD_MIN_ROWS", "int", "Rows from which that guard looks.", "128"),
    _image("VLLM_XPU_ALLREDUCE_RETRY_MAX", "int", "Repetitions of that guard.", "3"),
    _image("VLLM_XPU_ALLREDUCE_RETRY_SYNC", "bool", "That guard synchronises."),
    _image("VLLM_OFFLOAD_WEIGHTS_BEFORE_QUANT", "bool", "Quantise on the host.", "0"),
    _image("VLLM_QUANTIZE_Q40_LIB", "path", "Library of the Q4_0 quantiser."),
    _image("VLLM_INT4_GROUP_SIZE", "int", "Group size of INT4."),
    _image("VLLM_XPU_SINGLECARD_TRITON", "bool", "Triton kernels on one card.", "0"),
    Variable("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "bool", "Allow a longer context than the model's.", "vllm", "0",
             source=_ENVS, reads="python-true"),
    Variable("VLLM_CACHE_ROOT", "path", "vLLM's caches, compiled graphs among them.", "vllm", "the user's cache",
             source=f"{_ENVS}; steveseguin/llm-optimizations",
             why="one for each recipe: a stale compile cache hid and faked gains"),
    Variable("VLLM_HOST_IP", "str", "Address that the ranks meet at.", "vllm", source=_ENVS,
             why="the wrong interface hangs at init"),
    Variable("GLOO_SOCKET_IFNAME", "str", "Network interface of gloo.", "torch",
             profiles={"cpu:default": "{nic}", "cpu:probe": "{nic}"}, why="the wrong interface hangs at init",
             source="PyTorch documentation, torch.distributed"),
    Variable("VLLM_LOGGING_LEVEL", "str", "vLLM's log level.", "vllm", "INFO", profiles={"probe": "DEBUG"},
             source=_ENVS),
    Variable("VLLM_RPC_TIMEOUT", "int", "Milliseconds that a call to the engine may take.", "vllm", "10000",
             source=_ENVS, why="longer hides a hang"),
    Variable("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "int", "Seconds that a step may take.", "vllm", "300", source=_ENVS,
             why="longer hides a hang", cautions=(Caution(">300", "info", "longer hides a hang"),)),
    Variable("VLLM_USE_RAY_*", "str", "Ray settings.", "vllm", source="vLLM documentation", why="on one host use mp"),
    Variable("RAY_EXPERIMENTAL_NOSET_*", "bool", "Ray leaves the device variables alone.", "ray",
             source="Ray documentation", why="on one host use mp"),
    Variable("UCX_MEMTYPE_CACHE", "str", "UCX's cache of memory types.", "ucx", devices=_X,
             source="vLLM source, platforms/xpu.py", why="vLLM sets n on XPU"),
    Variable("OMP_NUM_THREADS", "int", "Host threads.", "openmp", source="vLLM source", why="1 in workers"),
    Variable("TRITON_*", "str", "Triton's settings.", "triton", source="Triton documentation",
             why="on XPU the package must be triton-xpu: plain triton shadows it"),
)  # fmt: skip
