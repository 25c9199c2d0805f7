"""oneCCL: algorithms and kernels.

The fast SYCL kernels run when CCL_WORKER_COUNT is 1, CCL_ENABLE_SYCL_KERNELS 1, the queue in order, the buffers on the
device, the backend Level Zero, the dtype a common one, the reduction sum or average, CCL_<COLLECTIVE> unset or topo,
counts equal, and no card oversubscribed. Older trees also want peer access and CCL_ZE_CACHE=1; newer ones let
all-reduce in without peers, which is why a host without peer access dies there unless profile no-p2p is set.
"""

from __future__ import annotations

from xpu_moe.env.variable import Caution, Conflict, Variable

_X = ("xpu",)
_SRC = "oneCCL source (2021.14 and master), environment variables"
_DOC = "oneCCL documentation, environment variables"
_NEWER = {"oneccl": ">2021.14"}  # read in master, absent in 2021.14; the loaded library's strings decide between
_SYCL = {"oneccl": ">=2021.11"}
_ALGORITHMS = (
    "topo", "ring", "ring_rma", "direct", "rabenseifner", "nreduce", "double_tree", "recursive_doubling", "2d",
)  # fmt: skip


def _algorithm(collective: str) -> Variable:
    return Variable(
        f"CCL_{collective}", "enum", f"Algorithm of {collective.lower()}; size ranges as ring:0-8192.", "oneccl",
        devices=_X, source=_DOC, reads="ccl-algorithm", why="any value but topo leaves the SYCL path",
        cautions=(Caution("!topo", "warn", "leaves oneCCL's SYCL kernels: slower"),),
    )  # fmt: skip


def _threshold(name: str, default: str | None, honoured: dict[str, str], **more) -> Variable:
    return Variable(
        f"CCL_SYCL_{name}_THRESHOLD", "bytes", "Bytes, plain digits: up to here this kernel is used.", "oneccl",
        default, devices=_X, source=more.pop("source", _SRC), honoured=honoured, **more,
    )  # fmt: skip


def _simple(name: str, default: str) -> Variable:
    return _threshold(
        f"{name}_SIMPLE", default, _NEWER, profiles={"no-p2p": "4294967296"}, when={"no-p2p": "library knows it"},
        source="intel/llm-scaler#594; SergiioB/intel-arc-pro-b70-inference-cookbook#8; default: log of oneCCL 2022.1.2",
        why="below it the plain kernel that needs no peer mapping: Intel's cure for hosts without peer access; must be "
        "at least max_num_batched_tokens x hidden_size x 2",
    )  # fmt: skip


VARIABLES = (
    Variable("CCL_ENABLE_SYCL_KERNELS", "bool", "The fast device kernels.", "oneccl", "1", devices=_X,
             why="0 is the last resort: 16 KiB 10.3 -> 45.4 us, half the speed of a server",
             source=f"{_SRC}; vllm-project/vllm#41663; intel/llm-scaler#594", honoured=_SYCL,
             cautions=(Caution("0", "warn", "half the speed: 16 KiB takes 45.4 us for 10.3"),)),
    Variable("CCL_WORKER_COUNT", "int", "Host progress threads.", "oneccl", "1", devices=_X,
             why="more than 1 switches the SYCL kernels off and hung at init", source=_SRC,
             cautions=(Caution(">1", "error", "switches oneCCL's SYCL kernels off; hung at init"),
                       Caution("<1", "error", "at least one progress thread is needed")),
             conflicts=(Conflict(">1", "CCL_ENABLE_SYCL_KERNELS=1", "SYCL kernels run with one worker only"),)),
    Variable("CCL_WORKER_AFFINITY", "str", "Cores of the progress threads.", "oneccl", "auto", devices=_X,
             why="pinning lost 8 to 10 %", source="steveseguin/llm-optimizations",
             cautions=(Caution("!auto", "warn", "pinning lost 8 to 10 %"),)),
    Variable("CCL_WORKER_MEM_AFFINITY", "str", "NUMA nodes of the progress threads' memory.", "oneccl", "auto",
             devices=_X, why="pinning lost 8 to 10 %", source="steveseguin/llm-optimizations",
             cautions=(Caution("!auto", "warn", "pinning lost 8 to 10 %"),)),
    Variable("CCL_WORKER_OFFLOAD", "bool", "Progress by the worker threads.", "oneccl", "1", devices=_X, source=_DOC),
    Variable("CCL_WORKER_WAIT", "bool", "Idle workers sleep.", "oneccl", "1", devices=_X, source=_DOC),
    Variable("CCL_ALLREDUCE", "enum", "Algorithm of all-reduce; size ranges as ring:0-8192.", "oneccl", None,
             devices=_X, reads="ccl-algorithm", source=f"{_SRC}; uxlfoundation/oneCCL#215",
             profiles={"default": "ring", "probe": "ring"},
             when=dict.fromkeys(("default", "probe"), "oneCCL 2022.0 or 2022.1 on B60"),
             why="any value but topo leaves the SYCL path: ring costs 30 %, direct far more. The default algorithm of "
             "oneCCL 2022.0 and 2022.1 hangs on B60, where ring works",
             cautions=(Caution("!topo", "warn", "leaves oneCCL's SYCL kernels: ring costs 30 %, direct far more"),)),
    *(_algorithm(name) for name in ("ALLGATHERV", "REDUCE_SCATTER", "BCAST", "REDUCE", "ALLTOALL", "ALLTOALLV")),
    _threshold("ALLREDUCE_LL", "4096", _NEWER, why="low-latency ring up to here; 8192 was exact and neutral (a MiniMax "
               "fp16 row is 6144)"),
    _threshold("ALLREDUCE_SMALL", "524288", _SYCL),
    _threshold("ALLREDUCE_MEDIUM", "16777216", _SYCL),
    _threshold("ALLGATHERV_LL", "2048", _NEWER),
    _threshold("ALLGATHERV_SMALL", "131072", _SYCL),
    _threshold("ALLGATHERV_MEDIUM", "2097152", _SYCL),
    _threshold("REDUCE_SCATTER_SMALL", "2097152", _SYCL),
    _threshold("REDUCE_SCATTER_MEDIUM", "67108864", _SYCL),
    _simple("ALLREDUCE", "4194304"),
    _simple("ALLGATHERV", "1048576"),
    _simple("REDUCE_SCATTER", "8388608"),
    Variable("CCL_SYCL_ALLTOALL_TMP_BUF", "bool", "Stage all-to-all in a buffer.", "oneccl", "0",
             profiles={"no-p2p": "1"}, devices=_X, when={"no-p2p": "library knows it"}, honoured=_NEWER,
             why="goes with the three SIMPLE thresholds", source="intel/llm-scaler#594"),
    Variable("CCL_SYCL_ALLREDUCE_TMP_BUF", "bool", "Stage all-reduce in a buffer.", "oneccl", "0", devices=_X,
             source=_SRC, honoured=_NEWER),
    Variable("CCL_SYCL_TMP_BUF_SIZE", "bytes", "Staging of each rank, on its card.", "oneccl", "402653184", devices=_X,
             source=_SRC, honoured=_NEWER, why="384 MiB of each card: smaller where memory is short"),
    Variable("CCL_SYCL_ALLREDUCE_LL", "enum", "Form of the low-latency all-reduce.", "oneccl", "ring",
             ("ring", "ring_markers", "twoshots", "recursive_doubling"), devices=_X,
             source="oneCCL pull request notes; log of oneCCL 2022.1.2", honoured=_NEWER, why="swept by benches only"),
    Variable("CCL_SYCL_ALLREDUCE_ARC", "bool", "The older Arc path.", "oneccl", "0", devices=_X,
             source=f"{_SRC}; steveseguin/llm-optimizations", honoured=_NEWER, why="gave another token hash",
             cautions=(Caution("1", "warn", "the older Arc path gave another token hash"),)),
    Variable("CCL_SYCL_FORCE_RECORDING_PATH", "bool", "Keep the sequence counter on the device always.", "oneccl", "0",
             profiles={"graph": "1"}, devices=_X, source=_SRC, honoured=_NEWER,
             why="safe in a replayed graph; 0.05 ms for 87 calls",
             conflicts=(Conflict("1", "SYCL_UR_USE_LEVEL_ZERO_V2=0", "the old adapter cannot record natively"),)),
    Variable("CCL_SYCL_FORCE_PCIE", "bool", "Take the PCIe kernels.", "oneccl", "0", devices=_X, source=_SRC,
             honoured=_NEWER),
    Variable("CCL_SYCL_PT2PT_ENABLE", "bool", "SYCL kernels for send and receive.", "oneccl", "1", devices=_X,
             source=_SRC, honoured=_NEWER),
    Variable("CCL_SYCL_SUB_COMMUICATOR", "bool", "SYCL kernels on sub-communicators (the name is spelt so).", "oneccl",
             "1", devices=_X, source=_SRC, honoured=_NEWER, why="the correctly spelt name does nothing"),
    Variable("CCL_SYCL_SUB_COMMUNICATOR", "bool", "Read by nobody: the correct spelling of a misspelt name.", "oneccl",
             devices=_X, source=_SRC, only_in="no version", instead="CCL_SYCL_SUB_COMMUICATOR (sic)"),
    Variable("CCL_SYCL_ESIMD", "bool", "ESIMD kernels.", "oneccl", "0", devices=_X, source=_SRC, honoured=_NEWER,
             why="the library of 2022.1.2 does not hold the name any more"),
    Variable("CCL_YIELD", "enum", "How a waiting thread waits.", "oneccl", "pause", ("pause", "sleep", "sched_yield"),
             devices=_X, source="log of oneCCL 2022.1.2", why="pause on more ranks than cores cost 30 ms a call where "
             "sched_yield took 0.1 ms: the probe sets it for CPU ranks"),
    Variable("CCL_SYCL_SINGLE_NODE_ALGORITHM", "bool", "Algorithms for one host.", "oneccl", "1", devices=_X,
             source=f"{_SRC}; uxlfoundation/oneCCL#215", honoured=_SYCL,
             why="0 did not cure the hang of uxlfoundation/oneCCL#215"),
    Variable("CCL_SYCL_OUTPUT_EVENT", "bool", "Give the caller an event.", "oneccl", "1", devices=_X, source=_SRC,
             honoured=_SYCL, why="0 breaks users of out-of-order queues",
             cautions=(Caution("0", "warn", "breaks users of out-of-order queues"),)),
    Variable("CCL_REDUCE_SCATTER_MONOLITHIC_PIPELINE_KERNEL", "bool", "One kernel for the pipeline.", "oneccl", "1",
             devices=_X, source=_SRC),
    Variable("CCL_ALLGATHERV_MONOLITHIC_PIPELINE_KERNEL", "bool", "One kernel for the pipeline.", "oneccl", "1",
             devices=_X, source=_SRC),
    *(Variable(name, "str", "Which engines copies use.", "oneccl", default, devices=_X, source=_SRC, reads="text",
               why="gains were not repeatable", cautions=(Caution("!default", "warn", "gains were not repeatable"),))
      for name, default in (("CCL_ZE_COPY_ENGINE", None), ("CCL_ZE_H2D_COPY_ENGINE", "none"),
                            ("CCL_ZE_D2D_COPY_ENGINE", "none"), ("CCL_SYCL_COPY_ENGINE", "0"))),
    Variable("CCL_ALGO_FALLBACK", "bool", "Another algorithm where the chosen one cannot run.", "oneccl", "1",
             devices=_X, source=_SRC, why="0 turns a slow path into an error: useful in a probe"),
    Variable("CCL_ZE_ENABLE_OVERSUBSCRIPTION_FALLBACK", "bool", "Slow path where two ranks share a card.", "oneccl",
             "1", devices=_X, source=_SRC, why="seen when the masks of the ranks overlap"),
    Variable("CCL_ZE_ENABLE_OVERSUBSCRIPTION_THROW", "bool", "Error where two ranks share a card.", "oneccl", "1",
             devices=_X, source=_SRC, why="seen when the masks of the ranks overlap"),
    Variable("CCL_LOG_LEVEL", "enum", "oneCCL's log level.", "oneccl", "warn",
             ("error", "warn", "info", "debug", "trace"), {"probe": "info"}, ("xpu", "cpu"),
             "info prints the chosen algorithm and the topology", _DOC),
    Variable("CCL_SCHED_PROFILE", "bool", "Timing of schedules.", "oneccl", "0", devices=_X, source=_SRC,
             why="distorts what it measures", cautions=(Caution("1", "warn", "distorts what it measures"),)),
)  # fmt: skip
