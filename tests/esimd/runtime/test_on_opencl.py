"""The runtime road on the OpenCL CPU device, end to end: torch tensors in USM -> SPIR-V twin -> the reference's result.

Everything runs in child processes (opencl_cases.py); one of them runs all cases, and a test here is one case's verdict.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from xpu_moe.env import read

CASES = Path(__file__).with_name("opencl_cases.py")
NAMES = re.findall(r"^def case_(\w+)\(", CASES.read_text(), re.M)
# Our own host code a layer (launches left out): the bound, with room for a machine that others use too.
HOST_US, SLACK = 10.0, 2.0

pytestmark = pytest.mark.slow


def python(*arguments: str, **environ: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments], env={**read.snapshot(), **environ}, capture_output=True, text=True, timeout=500
    )


@cache
def _all_cases() -> subprocess.CompletedProcess:
    return python(str(CASES))


def report() -> dict:
    """The JSON of all cases."""
    done = _all_cases()
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_case(name):
    found = report()[name]
    assert "failed" not in found, found["failed"]


def test_our_host_code_stays_below_ten_microseconds_a_layer(record_property):
    figures = report()["host_code_a_layer"]
    for name, value in figures.items():
        record_property(f"{name}_us", value)
    assert 0 < figures["bound"] <= HOST_US * SLACK, figures
    assert 0 < figures["run"] <= HOST_US * SLACK, figures


_TWICE = """
import ctypes, shutil, sys, tempfile
import torch
from xpu_moe.esimd.runtime import libsycl, library, standalone
folder = tempfile.mkdtemp()
root = standalone.environment()
second = shutil.copy(root / "lib" / "libsycl.so.9", folder)
ctypes.CDLL(str(root / "lib" / "libsycl.so.9"), mode=ctypes.RTLD_GLOBAL)
assert libsycl.loaded().major == 9
ctypes.CDLL(second)
try:
    library.library()
except libsycl.LibsyclError as error:
    print(error)
finally:
    shutil.rmtree(folder)
"""


def test_two_libsycl_in_one_process_are_an_error_that_names_both():
    report()  # the environment is there
    done = python("-c", _TWICE)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("libsycl.so.9") == 2 and "got 2 copies in this process" in done.stdout


def test_tracing_prints_json_at_exit_with_the_devices_clock():
    done = python(str(CASES), "a_duplicated_expert_counts_twice", XPU_MOE_TRACE_KERNELS="1")
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = json.loads(done.stderr.splitlines()[-1])["xpu_moe_kernels"]
    assert set(kernels) == {"moe_u4_up_bf16_g64", "moe_u4_down_bf16_g64"}
    for kernel in kernels.values():
        assert kernel["count"] == 1 and kernel["clock"] == "device" and kernel["max_us"] > 0


@pytest.mark.soak
def test_the_same_modules_run_through_the_runtime_of_oneapi_2025():
    """libsycl.so.8: the library is built anew against its headers, the SPIR-V stays that of the 2026 compiler."""
    wanted = ["moe_against_float64_and_the_cpu_operator", "routed_from_logits_to_output", "qk_rms_partial_and_apply"]
    done = python(str(CASES), "--libsycl-8", *wanted, "which_libsycl")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: verdict for name, verdict in found.items() if "failed" in verdict} == {}
    assert found["which_libsycl"] == {"loaded": 8, "built_for": 8}
