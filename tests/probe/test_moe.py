"""`python -m xpu_moe.probe moe`: the check can fail, the JSON is alone on stdout, what is missing is named."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from xpu_moe import cache
from xpu_moe.cpu import ops as cpu_ops
from xpu_moe.cpu.moe_u4 import GroupedByExpert
from xpu_moe.env import read
from xpu_moe.ops import contract
from xpu_moe.ops.contract import Support
from xpu_moe.probe import moe, moe_call, moe_shape

SMALL = [
    "--device", "cpu", "--hidden-size", "256", "--intermediate-size", "512", "--tp", "4", "--num-experts", "16",
    "--top-k", "4", "--group-size", "64", "--rounds", "1",
]  # fmt: skip
SHAPE = moe_shape.Shape(3, 256, 512, 4, 16, 4, 64, "float16", "u4", "silu", False)


def run(capsys, *extra: str) -> tuple[int, dict]:
    code = moe.main([*SMALL, "--json", *extra])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("extra", [(), ("--routed",), ("--nibble", "s4", "--dtype", "bfloat16"), ("-m", "5")])
def test_right_numbers_are_reported_with_the_backend_taken(capsys, extra):
    code, found = run(capsys, *extra)
    assert code == 0 and found["ok"] and 0 < found["error"] <= found["tolerance"]
    assert found["backend"] == "cpu_grouped" and found["reason"] and found["shape"]["inter"] == 128
    assert found["us"] > 0 and found["gbps"] == pytest.approx(found["bytes"] / found["us"] / 1e3)
    assert found["bandwidth_source"].startswith("measured now")
    assert found["percent_of_bandwidth"] == pytest.approx(100 / found["times_floor"])


def test_wrong_numbers_exit_1(capsys, monkeypatch):
    honest = GroupedByExpert.run

    def off_by_one_percent(self, *args, **keywords):
        return honest(self, *args, **keywords).mul_(1.01)

    monkeypatch.setattr(GroupedByExpert, "run", off_by_one_percent)
    code, found = run(capsys)
    assert code == 1 and not found["ok"] and found["error"] == pytest.approx(0.01, rel=0.1)


def test_an_output_that_was_not_written_is_wrong(capsys, monkeypatch):
    monkeypatch.setattr(GroupedByExpert, "run", lambda self, *args, **keywords: keywords["out"])
    code, found = run(capsys)
    assert code == 1 and found["error"] == float("inf")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--tp", "3"), "--tp: got 3, wanted a divisor of --intermediate-size 512"),
        (("--tp", "0"), "--tp: got 0, wanted a divisor of --intermediate-size 512"),
        (("--tp", "8", "--group-size", "128"), "/ --tp: got 64, wanted a multiple of --group-size 128"),
        (("--group-size", "48"), "--group-size: got 48, wanted 32 or 64 or 128"),
        (("--top-k", "17"), "--top-k: got 17, wanted 1..16"),
        (("-m", "0"), "--tokens: got 0, wanted at least 1"),
        (("--num-experts", "0"), "--num-experts: got 0, wanted at least 1"),
        (("--num-experts", "99999999999999999999"), "--num-experts: got 99999999999999999999, wanted at most 65536"),
        (("--hidden-size", "1048576", "--intermediate-size", "16777216"), "H 1048576, I 4194304, E 16, which need "),
        (("--rounds", "-1"), "--rounds: got -1, wanted a whole number from 1 to 10000"),
        (("--rounds", "0"), "--rounds: got 0, wanted a whole number from 1 to 10000"),
        (("--seed", "99999999999999999999"), "--seed: got 99999999999999999999, wanted a whole number from 0 to 9"),
        (("--backend", "no_such"), "no_such: unknown for moe_u4 on cpu; known: cpu_grouped"),
        (("--device", "xpu"), "--device xpu: "),
    ],
)  # fmt: skip
def test_what_cannot_be_probed_exits_2_with_the_reason(capsys, extra, message):
    code = moe.main([*SMALL, "--json", *extra])
    captured = capsys.readouterr()
    assert code == 2 and message in captured.err
    assert json.loads(captured.out) == {"ok": False, "cannot": captured.err.split("moe: ", 1)[1].strip()}


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 4 bytes\nframe 1"
        ),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
    ],
)
def test_an_allocator_that_refuses_is_an_answer(capsys, monkeypatch, error):
    def refuses(*_):
        raise error

    monkeypatch.setattr(moe_call, "make", refuses)
    assert moe.main([*SMALL, "--json"]) == 2
    said = json.loads(capsys.readouterr().out)["cannot"]
    assert said.startswith(f"the shape is too large for this device: {str(error).splitlines()[0]}; wanted smaller")
    assert "frame 1" not in said


def test_a_fault_of_ours_is_not_hidden(monkeypatch):
    def breaks(*_):
        raise RuntimeError("a kernel went wrong")

    monkeypatch.setattr(moe_call, "make", breaks)
    with pytest.raises(RuntimeError, match="a kernel went wrong"):
        moe.main(SMALL)


def test_the_memory_that_is_asked_for_is_what_the_layer_takes():
    weights = sum(t.numel() * t.element_size() for t in moe_call.make(SHAPE, "cpu", 0).weights.values())
    with pytest.raises(moe_call.CannotProbe, match="wanted a shape for the 0.0 GB that are free"):
        moe_call.check_memory(SHAPE, "cpu", weights)
    moe_call.check_memory(SHAPE, "cpu", 2 * weights)
    moe_call.check_memory(SHAPE, "cuda", 1)


def test_the_floor_counts_each_chosen_expert_once():
    call = moe_call.make(SHAPE, "cpu", 0)
    ids = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3], [3, 2, 1, 5]], dtype=torch.int32)
    call = replace(call, routes=[(torch.ones(3, 4), ids)])
    weights = 256 * 256 // 2 + 256 * 128 // 2
    scales = 2 * (256 * 4 + 256 * 2)
    assert call.floor_bytes(0) == 5 * (weights + scales) + 2 * 3 * 256 * 2


class Swapped(GroupedByExpert):
    """Reads its own order of bytes, made in place: the nibbles of each byte are swapped."""

    name, layout = "swapped", "swapped"

    def supports(self, case):
        return Support(case.layout == "swapped", "for the test" if case.layout == "swapped" else "not n_major")

    def prepare(self, weights, case):
        for tensor in (weights.w13, weights.w2):
            tensor.copy_(tensor >> 4 | tensor << 4)
        return replace(weights, layout="swapped")

    def run(self, x, w13, w13_scale, w2, w2_scale, *rest, layout, **keywords):
        assert layout == "swapped"
        w13, w2 = (tensor >> 4 | tensor << 4 for tensor in (w13, w2))
        return super().run(x, w13, w13_scale, w2, w2_scale, *rest, layout="n_major", **keywords)


def test_a_backend_with_a_layout_of_its_own_gets_its_weights_prepared(capsys, monkeypatch):
    monkeypatch.setattr(cpu_ops, "BACKENDS", (Swapped(), *cpu_ops.BACKENDS))
    contract.backends.cache_clear()
    contract.select.cache_clear()
    try:
        code, found = run(capsys)
        other_code, other = run(capsys, "--backend", "cpu_grouped")
    finally:
        monkeypatch.undo()
        contract.backends.cache_clear()
        contract.select.cache_clear()
    assert (code, found["backend"], found["refused"]) == (0, "swapped", [])
    assert (other_code, other["backend"]) == (0, "cpu_grouped")


def test_the_text_report_says_what_matters(capsys):
    assert moe.main(SMALL) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["device", "shape", "backend", "numbers", "time", "traffic", "memory"]
    assert "right: relative error" in lines[3] and "x the floor" in lines[6]


def _child(*arguments: str, **environ: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "xpu_moe.probe", "moe", *SMALL, "--json", *arguments]
    return subprocess.run(command, env={**read.snapshot(), **environ}, capture_output=True, text=True, timeout=500)


@pytest.mark.slow
def test_emulate_runs_the_esimd_source_and_counts_its_bytes():
    done = _child("--emulate")
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)["emulate"]
    assert found["ok"] and found["error"] <= 1e-3 and 1.0 <= found["traffic_ratio"] <= 1.02
    assert found["clang"].startswith("22.")


@pytest.mark.slow
def test_without_clang_the_package_is_named_and_the_exit_code_is_2(tmp_path):
    done = _child("--emulate", PATH=str(tmp_path))
    assert done.returncode == 2 and "apt-get install" in done.stderr and "clang-22" in done.stderr
    assert json.loads(done.stdout)["ok"] is False


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--emulate", "--opencl"])
def test_more_tokens_than_the_kernels_serve_are_refused_with_the_reason(flag):
    done = _child(flag, "-m", "65")
    assert done.returncode == 2 and "65 tokens, wanted at most 64" in done.stderr
    assert json.loads(done.stdout)["ok"] is False


@pytest.mark.slow
@pytest.mark.parametrize("extra", [(), ("--routed", "-m", "2")])
def test_opencl_runs_the_twin_and_reports_our_host_code(extra):
    done = _child("--opencl", *extra)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)["opencl"]
    assert found["ok"] and found["backend"] == "sycl_twin" and found["libsycl"] == "libsycl.so.9"
    assert 0 < found["host_us"] < found["submit_us"]


@pytest.mark.parametrize("flag", ["--emulate", "--opencl"])
@pytest.mark.parametrize("place", ["/dev/null", "/proc/x"])
def test_a_cache_folder_that_cannot_be_used_is_told_before_any_work(flag, place, capsys, monkeypatch):
    monkeypatch.setenv("XPU_MOE_CACHE", place)
    monkeypatch.setattr(moe.needs, "unusable", lambda name: pytest.fail("torch was loaded"))
    assert moe.main([*SMALL, flag, "--json"]) == 2
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["ok"] is False and answer["cannot"].startswith(f"cache folder {place}: ")
    assert said.err == f"xpu_moe.probe moe: {answer['cannot']}\n"


def test_one_that_goes_bad_later_is_no_fault_of_ours_either(capsys, monkeypatch):
    def gone(arguments):
        raise cache.UnsafeCache("cache folder x: gone")

    monkeypatch.setattr(moe, "_report", gone)
    code, found = run(capsys)
    assert (code, found) == (2, {"ok": False, "cannot": "cache folder x: gone"})
