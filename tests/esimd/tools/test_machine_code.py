"""PVC machine code of the shipped SPIR-V: the gates hold, and the gates can fail."""

from __future__ import annotations

import dataclasses
import json

import pytest

from xpu_moe.esimd import report
from xpu_moe.esimd.kernels import instances
from xpu_moe.esimd.tools import gates, isa, programs, rival, spirv

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kernels():
    return gates.compile_all("pvc")


@pytest.fixture(scope="module")
def instance_of():
    return {i.name: i for module in instances.modules().values() for i in module.instances}


def test_every_kernel_holds_its_bounds(kernels, instance_of):
    """No spills, no scratch, 128 registers, block messages for weights; <= 64 slots per 64 bytes for up and down."""
    assert set(kernels) == set(instance_of)
    assert [f for name, kernel in kernels.items() for f in gates.check(kernel, instance_of[name])] == []
    assert gates.check_threads() == []
    for shape in gates.BOUNDED:
        assert kernels[shape.kernel].weight_loop.slots_per_64_bytes <= 64


def test_nothing_got_worse_than_the_baseline(kernels):
    failures, sentence = gates.compare(kernels, "pvc")
    assert failures == [], sentence


def test_ours_costs_less_than_the_rival(kernels):
    """Against llm-scaler's design as rebuilt from its description: fewer slots, more threads."""
    theirs = rival.report()
    threads = rival.threads(1, gates.HIDDEN, gates.INTER, gates.TOP_K)
    for name, shape in zip(("up", "down"), gates.BOUNDED):
        ours = kernels[shape.kernel].weight_loop
        assert ours.slots_per_64_bytes < theirs[name].weight_loop.slots_per_64_bytes
        assert shape.threads > threads[name]


def test_the_gates_can_fail(kernels, instance_of):
    name = gates.BOUNDED[0].kernel
    good = kernels[name]
    loop = good.weight_loop

    def rules(**changes):
        return [f.rule for f in gates.check(dataclasses.replace(good, **changes), instance_of[name])]

    assert rules(spill_bytes=64) == ["spilled bytes"]
    assert rules(scratch_bytes=64) == ["scratch bytes"]
    assert rules(grf=256) == ["registers"]
    assert rules(slm_bytes=64 << 10) == ["SLM bytes of a group"]
    assert rules(loops=()) == ["a loop that streams weights"]
    slow = dataclasses.replace(loop, slots=loop.weight_bytes + 1)
    assert rules(loops=(slow,)) == ["issue slots per 64 bytes of weights"]
    gathers = dataclasses.replace(loop, messages={**loop.messages, "a64 byte gathering read 16b": 4})
    assert rules(loops=(gathers,)) == ["messages of the loop"]
    worse = {name: dataclasses.replace(good, instructions=good.instructions + 1)}
    failures, _ = gates.compare(worse, "pvc")
    assert [f.rule for f in failures] == ["instructions against the baseline"]


def test_a_kernel_that_spills_is_seen():
    """512 live registers of floats do not fit 128."""
    text = """#include "common.hpp"
    using namespace xpu_moe;
    XPU_MOE_KERNEL void spill(const float* x, float* y, int n) {
      simd<float, 64> a[64];
    #pragma unroll
      for (int i = 0; i < 64; ++i) a[i] = load_block<float, 64>(x + 64 * i);
      for (int k = 0; k < n; ++k)
    #pragma unroll
        for (int i = 0; i < 64; ++i) a[i] = a[i] * a[(i + 1) % 64] + a[(i + 7) % 64];
    #pragma unroll
      for (int i = 0; i < 64; ++i) esimd::block_store<float, 64>(y + 64 * i, a[i]);
    }
    """
    (kernel,) = isa.report(spirv.compile_text(text).spirv).kernels.values()
    assert kernel.spill_bytes > 0 or kernel.scratch_bytes > 0


def test_another_ocloc_records_its_own_baseline(kernels, private_cache, monkeypatch):
    other = programs.Found("/usr/bin/ocloc", "99.1-1", "22.43")
    monkeypatch.setattr(programs, "find", lambda name: other)
    assert gates.compare(kernels, "pvc")[1].startswith("recorded in")
    assert gates.compare(kernels, "pvc")[1].startswith("compared with")
    assert gates.baseline_file("pvc").is_relative_to(private_cache)


def test_a_missing_program_is_named_with_the_line_to_type(monkeypatch, capsys, private_cache):
    programs.find.cache_clear()
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    try:
        assert report.main([]) == 2
    finally:
        programs.find.cache_clear()
    assert "apt-get install -y --no-install-recommends intel-opencl-icd" in capsys.readouterr().err


def test_json_is_one_object_on_stdout(capsys):
    assert report.main(["--device", "pvc", "--no-rival", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["reports"][0]
    assert answer["failures"] == [] and answer["stale"] == {}
    assert answer["kernels"][gates.BOUNDED[0].kernel]["loop"]["slots_per_64_bytes"] <= 64
    assert "slots = sum" in answer["formula"]


def test_assembly_goes_into_a_folder_or_nothing_is_compiled(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(report, "collect", lambda *given: pytest.fail("a kernel was compiled"))
    (tmp_path / "file").touch()
    assert report.main(["--asm", str(tmp_path / "file"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["cannot"].startswith("--asm: got ")
    deep = tmp_path / "no" / "such"
    assert report.main(["--asm", str(deep), "--json"]) == 2
    told = json.loads(capsys.readouterr().out)["cannot"]
    assert told.startswith(f"--asm: got {str(deep)!r}: there is no {str(deep.parent)!r}; wanted a folder")
    assert not deep.parent.exists()


def test_assembly_may_go_into_a_new_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "collect", lambda device, keep, *others: {"failures": [], "keep": str(keep)})
    monkeypatch.chdir(tmp_path)
    for name in ("new", str(tmp_path / "new"), "."):
        assert report.main(["--asm", name, "--device", "pvc", "--no-rival", "--json"]) == 0


def test_a_device_that_ocloc_does_not_know_is_a_bad_argument(capsys, monkeypatch):
    monkeypatch.setattr(report, "collect", lambda *given: pytest.fail("a kernel was compiled"))
    assert report.main(["--device", "xyz", "--no-rival", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)["cannot"]
    assert told.startswith("--device: got 'xyz': ocloc says ") and "such as pvc, bmg" in told
