"""Which collective library a rank has loaded, and which algorithm its log names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from xpu_moe.env import library, versions


def identify(backend: str) -> dict[str, str]:
    """{name, path, version} of the library behind a torch backend, as it is loaded in this process."""
    import torch

    if backend == "gloo":
        paths = library.loaded("libtorch_cpu")
        return _said("gloo", paths, f"in torch {torch.__version__}")
    if backend == "nccl":
        version = ".".join(map(str, torch.cuda.nccl.version()))
        return _said("NCCL", library.loaded("libnccl") or library.loaded("libtorch_cuda"), version)
    path = library.oneccl()
    version = versions.installed().get("oneccl", "unknown")
    return _said("oneCCL", [path] if path else [], version)


def _said(name: str, paths: list, version: str) -> dict[str, str]:
    return {"name": name, "path": str(paths[0]) if paths else "", "version": version}


# (library, pattern of a log line) -> the groups that name the algorithm
_ALGORITHM_LINES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("NCCL", re.compile(r"NCCL INFO .*?(AllReduce): (\d+) Bytes -> Algo (\S+) proto (\S+)")),
    ("oneCCL", re.compile(r"selected algo: coll (allreduce), count (\d+), algo (\w+)")),
    ("oneCCL", re.compile(r"CCL_SYCL\| (allreduce) selects (.+?) kernel(?:.*?count: ?(\d+))?")),
)
_UNLOGGED = {"gloo": "ring in chunks (gloo's default; it logs none)"}


# What makes a library name its algorithm. Each does so at every call, which would distort every time.
LOUD: dict[str, dict[str, str]] = {
    "oneCCL": {"CCL_LOG_LEVEL": "debug"},
    "NCCL": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING"},
}


def algorithm(name: str, lines: Iterable[str]) -> str:
    """What the library's own log says of its all-reduce algorithm, distinct lines joined; never empty."""
    found: dict[str, None] = {}
    for line in lines:
        for owner, pattern in _ALGORITHM_LINES:
            match = pattern.search(line) if owner == name else None
            if match:
                found[" ".join(part for part in match.groups() if part)] = None
    return "; ".join(found) or _UNLOGGED.get(name, "not named in its log")
