"""The variables that the server gets: ours, the profile's, and what the user set (which always wins)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xpu_moe import cache
from xpu_moe.env import read
from xpu_moe.launch.detect import Found
from xpu_moe.launch.errors import ENVIRONMENT, USAGE, LaunchError
from xpu_moe.launch.plan import EnvValue
from xpu_moe.launch.settings import Setting
from xpu_moe.launch.words import counted


@dataclass(frozen=True)
class Always:
    """A variable that every launch sets unless the user did. `folder` names a place in our private cache."""

    name: str
    value: str
    why: str
    devices: tuple[str, ...] = ("xpu", "cuda", "cpu")
    folder: bool = False


ALWAYS = (
    Always("HF_HUB_OFFLINE", "1", "the checkpoint is local; nothing is fetched"),
    Always("VLLM_NO_USAGE_STATS", "1", "no usage report leaves this machine"),
    Always("DO_NOT_TRACK", "1", "no usage report leaves this machine"),
    Always("VLLM_CACHE_ROOT", "vllm", "compiled code lies in a folder of mode 0700", folder=True),
    Always("TORCHINDUCTOR_CACHE_DIR", "inductor", "compiled code lies in a folder of mode 0700", folder=True),
    Always("TRITON_CACHE_DIR", "triton", "compiled code lies in a folder of mode 0700", ("xpu", "cuda"), True),
    Always("SYCL_CACHE_DIR", "sycl", "compiled kernels lie in a folder of mode 0700", ("xpu",), True),
    Always("NEO_CACHE_DIR", "neo", "compiled kernels lie in a folder of mode 0700", ("xpu",), True),
)


def render(
    device: Found,
    settings: Mapping[str, Setting],
    environ: Mapping[str, str],
    run_folder: Path,
    profile: str = "default",
    make_folders: bool = True,
) -> tuple[EnvValue, ...]:
    """What is set for the server, in order. With `make_folders` the cache folders are made (ENVIRONMENT on refusal)."""
    rows: dict[str, EnvValue] = {}
    for entry in ALWAYS:
        if device.kind in entry.devices:
            value = _folder(entry.value, make_folders) if entry.folder else entry.value
            rows[entry.name] = EnvValue(entry.name, value, "default", entry.why)
    rows["XPU_MOE_REPORT"] = EnvValue(
        "XPU_MOE_REPORT", str(run_folder / "report"), "this run", "the workers tell here which backend serves"
    )
    rows |= {row.name: row for row in _of_profile(profile, device, settings, environ)}
    rows |= _of_settings(device, settings)
    return tuple(_yours(row, environ) for row in rows.values())


def _yours(row: EnvValue, environ: Mapping[str, str]) -> EnvValue:
    given = environ.get(row.name)
    if given is None or row.origin.startswith(("flag", "environment", "this run")):
        return row
    if given == row.value:
        return EnvValue(row.name, given, "yours", row.why)
    return EnvValue(row.name, given, f"yours; without it: {row.value}", row.why)


def _of_settings(device: Found, settings: Mapping[str, Setting]) -> dict[str, EnvValue]:
    rows: dict[str, EnvValue] = {}
    ipc = settings["ccl_ipc"]
    if ipc.value and device.kind == "xpu":
        rows["CCL_ZE_IPC_EXCHANGE"] = EnvValue("CCL_ZE_IPC_EXCHANGE", ipc.value, ipc.origin)
    ranks = settings["tp"].value * settings["pp"].value
    if device.kind == "cpu" and ranks > 1:
        rows["VLLM_CPU_OMP_THREADS_BIND"] = EnvValue(
            "VLLM_CPU_OMP_THREADS_BIND", cpu_shares(ranks), "default",
            "vLLM wants a NUMA node a rank unless the cores are given",
        )  # fmt: skip
    return rows


def cpu_shares(ranks: int, cores: list[int] | None = None) -> str:
    """The cores of each rank, as VLLM_CPU_OMP_THREADS_BIND spells them: `0,1|2,3`."""
    cores = sorted(os.sched_getaffinity(0)) if cores is None else cores
    if len(cores) < ranks:
        raise LaunchError(USAGE, f"--tp/--pp: {ranks} ranks, but this process may use {counted(len(cores), 'core')}")
    share = len(cores) // ranks
    return "|".join(",".join(map(str, cores[rank * share : (rank + 1) * share])) for rank in range(ranks))


def _folder(name: str, make: bool) -> str:
    if not make:
        return str(cache.location(name))
    try:
        return str(cache.folder(name))
    except cache.UnsafeCache as error:
        raise LaunchError(ENVIRONMENT, str(error)) from None


def _of_profile(
    profile: str, device: Found, settings: Mapping[str, Setting], environ: Mapping[str, str]
) -> list[EnvValue]:
    """What the environment profile exports; the user's own values come back as theirs."""
    from xpu_moe import verdict
    from xpu_moe.env import library, profiles, versions

    ranks = settings["tp"].value * settings["pp"].value
    cards = None if device.kind == "cpu" else tuple(range(ranks))
    try:
        situation = profiles.Situation(
            cards=cards, peer_access=verdict.peer_access(device.kind, cards), library=library.oneccl()
        )
        rendered = profiles.render(profile, device.kind, versions.installed(), environ, situation)
    except profiles.BadProfile as error:
        raise LaunchError(USAGE, str(error)) from None
    except cache.UnsafeCache as error:
        raise LaunchError(ENVIRONMENT, str(error)) from None
    return [EnvValue(s.name, s.wanted, f"profile {profile}", s.why) for s in rendered]


def inherited() -> dict[str, str]:
    """The environment of this process."""
    return read.snapshot()
