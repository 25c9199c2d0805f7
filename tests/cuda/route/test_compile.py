"""The kernels compile for Hopper, and the compiled code is kept and found again. Needs NVRTC or nvcc, no GPU."""

from __future__ import annotations

import pytest

from xpu_moe.cuda import compiler
from xpu_moe.cuda.compiler import CompileError, NoCompiler, Program
from xpu_moe.cuda.route_quant import launch
from xpu_moe.ops.route_and_quant_fp8 import Options

needs_compiler = pytest.mark.skipif(not compiler.available(), reason="neither NVRTC nor nvcc is installed here")
MINIMAX = (256, 3072)


def source(**defines: int) -> Program:
    return Program("tiny", 'extern "C" __global__ void k(int* p) { p[0] = N; }', tuple(defines.items()))


def test_the_key_holds_source_defines_headers_and_architecture():
    base = source(N=1)
    keys = {
        base.key("sm_90a"),
        base.key("sm_80"),
        source(N=2).key("sm_90a"),
        Program("tiny", base.text + " ", base.defines).key("sm_90a"),
        Program("tiny", base.text, base.defines, (("a.h", "x"),)).key("sm_90a"),
    }
    assert len(keys) == 5 and source(N=1).key("sm_90a") == base.key("sm_90a")


def test_hopper_gets_its_own_instructions():
    assert compiler.target("sm_90") == "sm_90a" and compiler.target("sm_80") == "sm_80"


def test_no_compiler_says_where_it_looked(monkeypatch, private_cache):
    monkeypatch.setattr(compiler, "nvrtc_library", lambda: None)
    monkeypatch.setattr(compiler, "nvcc_path", lambda: None)
    with pytest.raises(NoCompiler, match="no NVRTC .* and no nvcc"):
        compiler.cubin(source(N=1), "sm_90")


def test_a_kept_kernel_needs_no_compiler(monkeypatch, private_cache):
    monkeypatch.setattr(compiler, "compile_now", lambda unit, architecture: b"\x7fELFmade")
    assert compiler.cubin(source(N=1), "sm_90") == b"\x7fELFmade"
    monkeypatch.setattr(compiler, "compile_now", lambda unit, architecture: pytest.fail("compiled again"))
    assert compiler.cubin(source(N=1), "sm_90") == b"\x7fELFmade"
    assert [f.suffix for f in (private_cache / "cuda").iterdir()] == [".cubin"]


@needs_compiler
@pytest.mark.slow
def test_a_refused_source_shows_the_log(private_cache):
    with pytest.raises(CompileError, match="refused it"):
        compiler.cubin(Program("broken", "this is no CUDA"), "sm_90")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ("sm_80", "sm_90"))
@pytest.mark.parametrize(
    "build",
    (
        (*MINIMAX, 1, 0, 0, Options(8), 1, True, True),
        (*MINIMAX, 2, 0, -1, Options(8, False, scale_ue8m0=True, padded_hidden_size=3200), 2, True, False),
        (33, 3001, 0, 2, 1, Options(3, group_size=32), 1, False, False),
        (512, 7168, 1, 0, 0, Options(32, group_size=256), 2, True, True),
    ),
)
def test_every_shape_of_the_kernel_compiles(build, architecture, private_cache):
    code = compiler.cubin(launch.build(*build), architecture)
    assert code[:4] == b"\x7fELF" and b"route_quant" in code
