"""The SPIR-V that ships: of today's sources, small, reproducible, accepted by the checks of the runtime."""

from __future__ import annotations

import json

import pytest

from xpu_moe.esimd import build
from xpu_moe.esimd.kernels import instances
from xpu_moe.esimd.tools import spirv

REBUILD = "run: python -m xpu_moe.esimd build"


def test_committed_spirv_is_of_these_sources():
    assert spirv.stale() == {}, REBUILD


def test_every_instance_ships_and_all_of_it_is_small():
    known = spirv.manifest()["modules"]
    assert set(known) == set(instances.modules())
    for name, module in instances.modules().items():
        assert sorted(known[name]["kernels"]) == sorted(i.name for i in module.instances)
        assert (spirv.FOLDER / f"{name}.spv").stat().st_size == known[name]["bytes"]
    assert sum(row["bytes"] for row in known.values()) < 3_000_000


def test_a_changed_header_or_a_changed_file_is_stale(tmp_path, monkeypatch):
    folder = tmp_path / "kernels"
    folder.mkdir()
    for header in instances.FOLDER.glob("*.hpp"):
        (folder / header.name).write_bytes(header.read_bytes())
    monkeypatch.setattr(instances, "FOLDER", folder)
    assert spirv.stale() == {}
    (folder / "nibbles.hpp").write_text((folder / "nibbles.hpp").read_text() + "\n// changed\n")
    assert set(spirv.stale()) == set(instances.modules())
    assert "sources changed" in spirv.stale()["qk_rms_f16"]


def test_check_says_stale_by_exit_code(capsys, monkeypatch):
    assert build.main(["--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stale": {}}
    monkeypatch.setattr(spirv, "stale", lambda: {"qk_rms_f16": "never built"})
    assert build.main(["--check"]) == 1
    assert "qk_rms_f16: never built" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        build.main(["no_such_module"])
    assert stop.value.code == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qk_rms_bf16", "route_sigmoid_topk"])
def test_a_rebuild_gives_the_committed_bytes(name):
    compiled = spirv.compile_module(instances.modules()[name])
    assert compiled.spirv == (spirv.FOLDER / f"{name}.spv").read_bytes(), REBUILD


@pytest.mark.soak
@pytest.mark.parametrize("name", [n for n in instances.modules() if n.startswith("moe_u4")])
def test_a_rebuild_gives_the_committed_bytes_for_moe(name):
    compiled = spirv.compile_module(instances.modules()[name])
    assert compiled.spirv == (spirv.FOLDER / f"{name}.spv").read_bytes(), REBUILD


@pytest.mark.slow
def test_the_compiler_refuses_with_file_and_line():
    with pytest.raises(spirv.CompileError, match=r"module.cpp:2"):
        spirv.compile_text('#include "common.hpp"\nXPU_MOE_KERNEL void k(int* p) { nonsense; }\n')
