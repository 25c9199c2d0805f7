"""oneCCL: topology, peer access, IPC handles, caches, and which library is loaded."""

from __future__ import annotations

from xpu_moe.env.variable import Caution, Conflict, Variable

_X = ("xpu",)
_SRC = "oneCCL source (2021.14 and master), environment variables"
_DOC = "oneCCL documentation, environment variables"

VARIABLES = (
    Variable(
        "CCL_TOPO_P2P_ACCESS", "int", "1 treats peers as reachable, 0 goes through host memory.", "oneccl",
        profiles={"default": "1", "no-p2p": "0"}, devices=_X, when={"default": "peer access proved"},
        why="unset, the driver is asked for every pair. Forced, it is not checked: 1 on a host that refuses dies in "
        "zeMemOpenIpcHandle or corrupts data, 0 where peers work costs 9 to 15 %; so 1 only after the integrity probe",
        source=f"{_SRC}; intel/compute-runtime#935; steveseguin/llm-optimizations",
        cautions=(Caution("other", "warn", "neither 0 nor 1"),),
    ),
    Variable(
        "CCL_ZE_IPC_EXCHANGE", "enum", "How IPC handles travel between the ranks.", "oneccl", "pidfd",
        ("pidfd", "drmfd", "sockets"), {"probe": "pidfd"}, _X,
        "left unset for vLLM: unset served where a stand-alone probe hung, which pidfd cured. pidfd needs kernel 5.6, "
        "SYS_PTRACE (or yama 0) and an unfiltered pidfd_getfd; where its self-test fails oneCCL takes drmfd and "
        "overrides even an explicit value",
        f"{_SRC}; uxlfoundation/oneCCL#213; steveseguin/llm-optimizations",
        cautions=(Caution("sockets", "warn", "overridden by drmfd where pidfd's self-test fails, and not for "
                          "send/recv (uxlfoundation/oneCCL#213)"),),
    ),
    Variable("CCL_DRMFD_DEV_RENDER_DIR_PATH", "path", "Where drmfd looks for render nodes.", "oneccl",
             "/dev/dri/by-path/", devices=_X, source=f"{_SRC}; uxlfoundation/oneCCL#217",
             why="by-path that is not mounted in a container leaves no device_fd"),
    Variable("CCL_DRMFD_DEV_RENDER_SUFFIX", "str", "Suffix of the render nodes that drmfd looks for.", "oneccl",
             "-render", devices=_X, source=f"{_SRC}; uxlfoundation/oneCCL#217"),
    Variable("CCL_TOPO_FABRIC_VERTEX_CONNECTION_CHECK", "bool", "1 checks the Xe-Link fabric, 0 assumes it.", "oneccl",
             "1", devices=_X, source=f"{_SRC}; steveseguin/llm-optimizations",
             why="newer trees exempt Arc; 0 was neutral to ten times slower: leave it alone",
             cautions=(Caution("0", "warn", "neutral at best, once 2.4 tok/s: unset it"),)),
    Variable("CCL_TOPO_COLOR", "enum", "Hand-made topology.", "oneccl", None, ("fixed", "ze", "env"), devices=_X,
             source=_DOC, why="wrong colours choose the wrong algorithm"),
    Variable(
        "CCL_ZE_CACHE", "bool", "Cache of Level Zero objects and IPC handles.", "oneccl", "1", devices=_X,
        why="0 costs about 39 %, and older trees then refuse their SYCL kernels",
        source=f"{_SRC}; uxlfoundation/oneCCL#212",
        cautions=(Caution("0", "warn", "costs about 39 %; older oneCCL then refuses its SYCL kernels"),),
        conflicts=(Conflict("0", "CCL_ZE_CACHE_OPEN_IPC_HANDLES=1", "CCL_ZE_CACHE=0 forces it to 0"),),
    ),
    Variable("CCL_ZE_CACHE_OPEN_IPC_HANDLES", "bool", "Cache of opened IPC handles.", "oneccl", "1",
             profiles={"stable": "0"}, devices=_X, source="uxlfoundation/oneCCL#212",
             why="stale handles after a re-allocation hang or fault; 0 costs about 3 %"),
    Variable("CCL_ZE_CACHE_OPEN_IPC_HANDLES_THRESHOLD", "int", "Entries of that cache.", "oneccl", "1000", devices=_X,
             source=_SRC),
    Variable("CCL_ZE_CACHE_GET_IPC_HANDLES", "bool", "Cache of exported IPC handles.", "oneccl", "1", devices=_X,
             source=_SRC, why="rarely the cause of stale handles"),
    Variable("CCL_ZE_LIBRARY_PATH", "path", "Another Level Zero loader.", "oneccl", devices=_X, source=_DOC,
             why="a second loader in one process mixes ABIs"),
    Variable("CCL_BUFFER_CACHE", "bool", "Cache of host buffers.", "oneccl", "1", devices=_X, source=_SRC),
    Variable("CCL_UMF_ENABLE", "bool", "Unified memory framework.", "oneccl", "0", devices=_X, source=_SRC,
             honoured={"oneccl": ">2021.14"}),
    Variable("CCL_KERNEL_PATH", "path", "Directory of kernels.spv.", "oneccl",
             "<CCL_ROOT, else ONEAPI_ROOT, else library dir>/lib/ccl/kernels/", devices=_X, source=_SRC,
             why="a sourced other oneAPI (CCL_ROOT) pairs kernels with a foreign library"),
    Variable("CCL_ROOT", "path", "Root of a oneCCL installation; set by setvars.", "oneccl", devices=_X,
             source="vllm-project/vllm#49924",
             why="unset in a wheel environment: it leads to two generations of oneCCL or libsycl in one process"),
    Variable("ONEAPI_ROOT", "path", "Root of a oneAPI installation; set by setvars.", "sycl", devices=_X,
             source="vllm-project/vllm#49924",
             why="unset in a wheel environment: it leads to two generations of oneCCL or libsycl in one process"),
    Variable("CCL_CONFIGURATION", "str", "Which flavour of the library setvars chooses.", "oneccl", devices=_X,
             source=_DOC, why="the cpu flavour has no GPU support",
             cautions=(Caution("cpu", "error", "this flavour of oneCCL has no GPU support; wanted cpu_gpu_dpcpp"),)),
    Variable("CCL_CONFIGURATION_PATH", "path", "Folder of the flavours that setvars chooses from.", "oneccl",
             devices=_X, source=_DOC),
)  # fmt: skip
