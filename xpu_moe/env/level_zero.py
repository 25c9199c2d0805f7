"""Level Zero, SYCL, Unified Runtime, the compute runtime (NEO): which devices, and how they are driven."""

from __future__ import annotations

from xpu_moe.env.variable import Caution, Conflict, Need, Variable

_X = ("xpu",)
_L0 = "Level Zero documentation, environment variables"
_LLVM = "intel/llvm documentation, environment variables"
_UR = "Unified Runtime documentation; steveseguin/llm-optimizations"
_NEO = "intel/compute-runtime source, debug keys"
_V1 = "the v1 Level Zero adapter"


def _key(name: str, kind, doc: str, default: str | None, source: str = _NEO, **more) -> Variable:
    keys = Need("*", "NEOReadDebugKeys=1", "the compute runtime ignores its debug keys without it")
    return Variable(name, kind, doc, "neo", default, devices=_X, source=source, needs=(keys,), **more)


def _immediate(name: str, owner, instead: str) -> Variable:
    return Variable(
        name, "int", "Immediate command lists: 0, 1 or 2.", owner, "by device", ("0", "1", "2"), devices=_X,
        source=f"{_UR}; {_LLVM}", only_in=_V1, instead=instead, why="1 was slower, 2 hung; the v2 adapter ignores it",
        cautions=(Caution("1", "warn", "slower: 45.5 us"), Caution("2", "error", "hung")),
        needs=(Need("*", "SYCL_UR_USE_LEVEL_ZERO_V2=0", "the v2 adapter ignores it"),),
    )  # fmt: skip


def _copy_engine(name: str, owner) -> Variable:
    return Variable(
        name, "str", "Which copy engines are used.", owner, "1", devices=_X, source=_UR, only_in=_V1,
        why="gains were not repeatable", cautions=(Caution("!default", "warn", "gains were not repeatable"),),
        needs=(Need("*", "SYCL_UR_USE_LEVEL_ZERO_V2=0", "the v2 adapter ignores it"),),
    )  # fmt: skip


VARIABLES = (
    Variable("ZE_AFFINITY_MASK", "list", "Device indices that the Level Zero driver shows.", "level-zero",
             profiles={"default": "{cards}"}, devices=_X, when={"default": "cards planned"},
             source=f"uxlfoundation/oneCCL#217; {_L0}",
             why="fewer cards than tp x pp x dp fails or makes ranks share one. The same mask in every worker: each "
             "process must see all devices, else the communicator breaks and drmfd deadlocks"),
    Variable("ONEAPI_DEVICE_SELECTOR", "str", "SYCL's device filter, with the backend's prefix.", "sycl",
             profiles={"default": "level_zero:{ordinals}"}, devices=_X, when={"default": "cards planned"}, source=_LLVM,
             why="counts after ZE_AFFINITY_MASK renumbers; opencl:* or a bare number leaves no Level Zero GPU",
             conflicts=(Conflict("*", "SYCL_DEVICE_FILTER", "two filters; the older one is not honoured"),
                        Conflict("*", "SYCL_BE", "two filters; the older one is not honoured")),
             cautions=(Caution("!~level_zero", "error", "leaves no Level Zero GPU: write level_zero:gpu"),)),
    Variable("ZE_FLAT_DEVICE_HIERARCHY", "enum", "How tiles are counted.", "level-zero", "FLAT",
             ("FLAT", "COMPOSITE", "COMBINED"), devices=_X, source=_L0, why="no difference on cards of one tile"),
    Variable("ZE_ENABLE_PCI_ID_DEVICE_ORDER", "bool", "Number devices by PCI id.", "level-zero", "0",
             profiles={"default": "1"}, devices=_X, source=_L0,
             why="stable numbers beside an integrated or another GPU"),
    Variable("ZES_ENABLE_SYSMAN", "bool", "The management interface.", "level-zero", "0", profiles={"default": "1"},
             devices=_X, source=_L0, why="free memory is asked there; on by default in new loaders only"),
    *(Variable(name, "bool", doc, "level-zero", "0", devices=_X, source=_L0, why="slow: for debugging only",
               cautions=(Caution("1", "warn", "slow: for debugging only"),))
      for name, doc in (("ZE_ENABLE_ALT_DRIVERS", "Take another driver."),
                        ("ZE_ENABLE_VALIDATION_LAYER", "Check every call."),
                        ("ZE_ENABLE_PARAMETER_VALIDATION", "Check every argument."))),
    Variable("SYCL_UR_USE_LEVEL_ZERO_V2", "bool", "1 the new adapter, 0 the old one.", "sycl", "by release",
             profiles={"stable": "0"}, devices=_X, source="vllm-project/vllm#41663; intel/llvm",
             honoured={"oneapi": ">=2025.1"},
             why="newer releases choose v2 on Xe2; the old adapter cured faults in one report, but it cannot record "
             "natively, so it never goes with graphs",
             conflicts=(Conflict("0", "VLLM_XPU_ENABLE_XPU_GRAPH=1", "the old adapter cannot record a graph"),)),
    _immediate("UR_L0_USE_IMMEDIATE_COMMANDLISTS", "ur", ""),
    _immediate("SYCL_PI_LEVEL_ZERO_USE_IMMEDIATE_COMMANDLISTS", "sycl", "UR_L0_USE_IMMEDIATE_COMMANDLISTS"),
    Variable("UR_L0_DEVICE_SCOPE_EVENTS", "int", "Scope of events.", "ur", "0", ("0", "1", "2"), devices=_X,
             source=_UR, only_in=_V1, why="2 hung", cautions=(Caution("2", "error", "hung"),),
             needs=(Need("*", "SYCL_UR_USE_LEVEL_ZERO_V2=0", "the v2 adapter ignores it"),)),
    _copy_engine("UR_L0_USE_COPY_ENGINE", "ur"),
    _copy_engine("SYCL_PI_LEVEL_ZERO_USE_COPY_ENGINE", "sycl"),
    Variable("UR_L0_V2_FORCE_DISABLE_COPY_OFFLOAD", "bool", "No copy engines in the v2 adapter.", "ur", "0",
             devices=_X, source="intel/llvm#20703", only_in="the v2 Level Zero adapter",
             conflicts=(Conflict("*", "SYCL_UR_USE_LEVEL_ZERO_V2=0", "the v1 adapter ignores it"),)),
    Variable("UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS", "bool", "Single allocations over 4 GB.", "ur", "0",
             profiles={"default": "1"}, devices=_X, when={"default": "a tensor over 4 GB"}, source=_UR,
             why="without it a tensor over 4 GB ends in OUT_OF_RESOURCES or an invalid size"),
    Variable("UR_L0_IMMEDIATE_COMMANDLISTS_EVENT_CLEANUP_THRESHOLD", "int", "Events kept before a clean-up.", "ur",
             "20", devices=_X, source=_UR, only_in=_V1),
    Variable("UR_ADAPTERS_FORCE_LOAD", "str", "Adapters that the loader takes.", "ur", devices=_X, source=_LLVM),
    Variable("UR_LOG_*", "str", "Log level of the loader or of an adapter.", "ur", devices=_X, source=_LLVM),
    Variable("SYCL_UR_TRACE", "int", "Trace of the runtime's calls.", "sycl", devices=_X, source=_LLVM,
             why="1 in a second run after a failure"),
    Variable("SYCL_CACHE_PERSISTENT", "bool", "Keep compiled kernels on disk.", "sycl", "0",
             profiles={"default": "1"}, devices=_X, source=_LLVM, why="saves minutes of every start"),
    Variable("SYCL_CACHE_DIR", "path", "Where compiled kernels are kept.", "sycl", "the user's cache", devices=_X,
             source=_LLVM, why="clear it after a change of driver"),
    Variable("SYCL_CACHE_MAX_SIZE", "bytes", "Size of that cache.", "sycl", "8589934592", devices=_X, source=_LLVM),
    *(Variable(name, "str", "An older device filter.", "sycl", devices=_X, source=_LLVM, honoured={"oneapi": "<2024"},
               why="deprecated, then removed", instead="ONEAPI_DEVICE_SELECTOR")
      for name in ("SYCL_DEVICE_FILTER", "SYCL_BE")),
    Variable("NEOReadDebugKeys", "bool", "Let the compute runtime read its debug keys.", "neo", "0",
             profiles={"stable": "1"}, devices=_X, source=_NEO, why="the keys below do nothing without it"),
    _key("RenderCompressedBuffersEnabled", "bool", "Compressed buffers.", "1", profiles={"stable": "0"},
         source="vllm-project/vllm#41663; intel/llm-scaler", why="0 took part in a stable recipe; also for ze_peak"),
    _key("EnableHostUsmAllocationPool", "bool", "Pool of host allocations.", "by driver", profiles={"stable": "0"},
         source="vllm-project/vllm#41663", why="0 took part in a stable recipe"),
    _key("EnableDeviceUsmAllocationPool", "bool", "Pool of device allocations.", "by driver",
         source="vllm-project/vllm#41663"),
    _key("EnableImplicitScaling", "bool", "One device over several tiles.", None, why="not needed"),
    _key("OverrideDefaultFP64Settings", "bool", "Emulation of fp64.", None, why="not needed"),
    _key("IGC_EnableDPEmulation", "bool", "Emulation of fp64 in the compiler.", None, why="not needed"),
    _key("EnableDirectSubmission", "bool", "Submission from user space (ULLS).", "1",
         why="on for BMG; 0 is a step of diagnosis for hangs, with slower launches"),
    Variable("IGC_*", "str", "Options of the graphics compiler.", "igc", devices=_X, source="intel/llm-scaler",
             why="at the build of kernels only"),
    Variable("LIBZE_*", "str", "Which Level Zero is found.", "loader", devices=_X, source="vllm-project/vllm#49924",
             why="two generations in one process crash or do not import"),
    Variable("LD_LIBRARY_PATH", "list", "Where the loader looks first.", "loader", source="vllm-project/vllm#49924",
             why="the environment's own lib folder first, no setvars of another generation"),
    Variable("LD_PRELOAD", "list", "Libraries loaded before all others.", "loader", source="vllm-project/vllm#49924",
             why="two generations of libsycl, libccl or libze in one process crash or do not import"),
)  # fmt: skip
