"""The all-reduce probe on oneCCL's C++ API, on CPU ranks. The first run installs oneCCL (2 GB) into the cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.probe.runs import Run, probe
from xpu_moe import cache, toolenv
from xpu_moe.probe._allreduce import oneccl as helper

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


def oneccl(folder: Path, *arguments: str) -> Run:
    """A run with the user's cache, where oneCCL and the helper are kept between tests."""
    if shutil.which("g++") is None:
        pytest.fail("g++ is missing: apt-get install g++")
    base = ("--backend", "oneccl", "--device", "cpu")
    return probe(folder, *base, *arguments, XPU_MOE_CACHE=str(cache.folder()))


@pytest.mark.parametrize("world", [2, 4])
def test_the_numbers_are_right_in_every_dtype(world, tmp_path):
    for dtype in ("bfloat16", "float16", "float32"):
        run = oneccl(tmp_path, "--world", str(world), "--sizes", "4,8,4100,6144,40028,524292", "--dtype", dtype)
        assert run.code == 0 and run.report["verdict"] == "ok", run.stderr
        assert len(run.report["rows"]) == 12 and all(row["ok"] for row in run.report["rows"])
        assert run.report["library"]["name"] == "oneCCL" and run.report["library"]["version"].startswith("2022.1")
        assert "libccl" in run.report["library"]["path"]
        assert "recursive_doubling" in run.report["algorithm"], run.report["algorithm"]
        assert {"name": "CCL_ATL_TRANSPORT", "value": "ofi", "origin": "probe"} in run.report["environment"]
        assert run.left_behind() == []


@pytest.mark.parametrize(
    "fault,code,rank",
    [("kill@init:1", 4, 1), ("kill@timed:0", 4, 0), ("sleep@warmup:1", 3, 1), ("sleep@init:0", 3, 0),
     ("wrong@check:1", 5, None), ("version@init:0", 4, None)],
)  # fmt: skip
def test_a_fault_ends_the_run_and_is_named(fault, code, rank, tmp_path):
    run = oneccl(tmp_path, "--world", "2", "--sizes", "8,6144", "--timeout", "4", "--inject", fault)
    assert run.code == code, run.stderr
    if code == 3:
        assert run.report["stuck"]["ranks"] == [rank] and "in strike" in run.report["stuck"]["where"][str(rank)]
    if code == 4 and rank is not None:
        assert run.report["dead"][0]["rank"] == rank
    if code == 5:
        first = run.report["wrong"][0]
        assert (first["count"], first["got"]) == (1, first["wanted"] + 1)
    assert run.left_behind() == []


def test_the_device_path_compiles_against_the_sycl_headers(tmp_path):
    """No SYCL compiler here: the host's one checks every type of the path that runs on an Intel GPU."""
    root = toolenv.ensure("oneccl", helper.WHEELS)
    quiet = ("-D__SYCL_DEPRECATED(message)=", "-DSYCL_DISABLE_DEPRECATION_WARNINGS", "-DSYCL_LANGUAGE_VERSION=202012L")
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", "-DPROBE_SYCL", *quiet, f"-I{root}/include"]
    done = subprocess.run([*command, str(helper.SOURCE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


def test_a_library_that_cannot_meet_is_diagnosed(tmp_path):
    base = {"XPU_MOE_CACHE": str(cache.folder()), "CCL_KVS_IFACE": "nosuch0"}
    arguments = ("--backend", "oneccl", "--device", "cpu", "--world", "2", "--sizes", "8", "--timeout", "6")
    run = Run(tmp_path, arguments, base).start().finish()
    assert run.code in (3, 4), run.report
    assert any("network interface" in cause for cause in run.report["causes"]), run.report
    assert run.left_behind() == []
