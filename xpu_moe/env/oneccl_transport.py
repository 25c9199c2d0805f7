"""oneCCL: host transport, bootstrap, and the libfabric below it."""

from __future__ import annotations

from xpu_moe.env.variable import Caution, Conflict, Need, Variable

_X = ("xpu",)
_SRC = "oneCCL source (2021.14 and master), environment variables"
_DOC = "oneCCL documentation, environment variables"
_FI = "libfabric documentation, fi_provider(7)"
_ONE_HOST = "a host or container whose only interface is the loopback finds no interface otherwise"

VARIABLES = (
    Variable(
        "CCL_ATL_TRANSPORT", "enum", "Host transport of oneCCL.", "oneccl", "mpi if built so and launched so, else ofi",
        ("mpi", "ofi"),
        {"default": "ofi", "probe": "ofi"}, _X,
        "mpi under vLLM's mp workers dies in MPIDI_GPU_init or hangs; without MPI launcher variables it falls back to "
        "ofi with a warning",
        f"{_SRC}; steveseguin/llm-optimizations",
        cautions=(Caution("mpi", "error", "dies in MPIDI_GPU_init or hangs under vLLM's mp workers; use ofi"),),
    ),
    Variable("CCL_ATL_SHM", "bool", "Shared memory for the host transport.", "oneccl", "0", devices=_X,
             why="not needed on one host", source=_DOC),
    Variable(
        "CCL_PROCESS_LAUNCHER", "enum", "Who tells a rank its number.", "oneccl", "hydra",
        ("hydra", "torchrun", "pmix", "none"), devices=_X, why="XCCL passes its own key-value store", source=_SRC,
        needs=(
            Need("none", "CCL_LOCAL_RANK", "without a launcher every worker must name its local rank"),
            Need("none", "CCL_LOCAL_SIZE", "without a launcher every worker must name the local size"),
        ),
    ),
    Variable("CCL_LOCAL_RANK", "int", "Rank on this host; read with CCL_PROCESS_LAUNCHER=none only.", "oneccl",
             devices=_X, why="set per worker by a launcher", source=_SRC,
             needs=(Need("*", "CCL_PROCESS_LAUNCHER=none", "read with launcher none only"),)),
    Variable("CCL_LOCAL_SIZE", "int", "Ranks on this host; read with CCL_PROCESS_LAUNCHER=none only.", "oneccl",
             devices=_X, why="a wrong size hangs at init", source=_SRC,
             needs=(Need("*", "CCL_PROCESS_LAUNCHER=none", "read with launcher none only"),)),
    Variable("CCL_KVS_MODE", "enum", "Key-value store of the bootstrap.", "oneccl", "pmi", ("pmi", "mpi"), devices=_X,
             source=_SRC),
    Variable("CCL_KVS_IFACE", "str", "Network interface of the key-value store (substring match).", "oneccl",
             profiles={"default": "{nic}", "probe": "{nic}"}, devices=_X,
             why=f"the default takes any interface whose name has no 'lo' in it: {_ONE_HOST}, even at world size 1",
             source=_SRC),
    Variable("CCL_KVS_IP_PORT", "str", "Fixed ip_port of the key-value store.", "oneccl", devices=_X, source=_DOC,
             why="two jobs with one value collide",
             cautions=(Caution("*", "warn", "two jobs with this value on one host collide"),)),
    Variable("CCL_KVS_CONNECTION_TIMEOUT", "int", "Seconds to wait for all ranks.", "oneccl", "120",
             profiles={"probe": "30"}, devices=_X, why="a dead worker is a hang until then", source=_SRC),
    Variable(
        "FI_PROVIDER", "str", "libfabric provider: tcp, psm3, verbs, …", "libfabric",
        profiles={"default": "tcp", "probe": "tcp"}, devices=_X,
        why="on one host only the bootstrap uses it; a provider that oneCCL's bundled libfabric does not have, or "
        "cannot use alone, ends in an fi_getinfo error at init",
        source=_FI,
        cautions=(
            Caution("shm", "error", "cannot be used alone by oneCCL: init fails in fi_getinfo; use tcp"),
            Caution("cxi", "error", "not in oneCCL's bundled libfabric: init fails in fi_getinfo; use tcp"),
        ),
    ),
    Variable("FI_PROVIDER_PATH", "path", "Directory of libfabric's provider plug-ins.", "libfabric", devices=_X,
             why="set it to <ccl>/…/libfabric/lib/prov where libfabric was relocated (wheels, distroless images); a "
             "missing or stale path leaves no provider at all", source=_FI),
    Variable("FI_TCP_IFACE", "str", "Network interface of the tcp provider.", "libfabric",
             profiles={"default": "{nic}", "probe": "{nic}"}, devices=_X,
             why="the wrong interface hangs at init; the same one as CCL_KVS_IFACE",
             source="steveseguin/llm-optimizations; libfabric documentation, fi_tcp(7)"),
    Variable("FI_LOG_LEVEL", "enum", "libfabric's log level.", "libfabric", None, ("warn", "trace", "info", "debug"),
             {"probe": "warn"}, _X, source=_FI),
    Variable("I_MPI_*", "str", "Left over from an mpirun shell.", "mpi", devices=_X, source=_SRC,
             why="its presence keeps oneCCL's transport on mpi",
             conflicts=(Conflict("*", "CCL_ATL_TRANSPORT=ofi", "left over from mpirun; unset it"),)),
    Variable("PMI_*", "str", "Left over from an mpirun or SLURM shell.", "mpi", devices=_X, source=_SRC,
             why="its presence keeps oneCCL's transport on mpi",
             conflicts=(Conflict("*", "CCL_ATL_TRANSPORT=ofi", "left over from mpirun or SLURM; unset it"),)),
    Variable("MPI_LOCALRANKID", "int", "Left over from an mpirun shell.", "mpi", devices=_X, source=_SRC,
             why="its presence keeps oneCCL's transport on mpi",
             conflicts=(Conflict("*", "CCL_ATL_TRANSPORT=ofi", "left over from mpirun; unset it"),)),
    Variable("MPI_LOCALNRANKS", "int", "Left over from an mpirun shell.", "mpi", devices=_X, source=_SRC,
             why="its presence keeps oneCCL's transport on mpi",
             conflicts=(Conflict("*", "CCL_ATL_TRANSPORT=ofi", "left over from mpirun; unset it"),)),
    Variable("CCL_ZE_ENABLE", "bool", "Load Level Zero at all; 0 for ranks that hold CPU buffers only.", "oneccl", "1",
             devices=("xpu", "cpu"), source="seen: oneCCL 2022.1.2 on CPU ranks aborts on a loader without zesInit",
             why="the probe's C++ helper sets 0 for CPU ranks"),
)  # fmt: skip
