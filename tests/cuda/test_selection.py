"""The MoE selection table and what backends answer without a card: the requirements drawn from two public reviews."""

from __future__ import annotations

import dataclasses
import re

import pytest

from xpu_moe.cuda import compiler, flashinfer, selection
from xpu_moe.cuda.decode import backends as decode
from xpu_moe.ops import contract
from xpu_moe.ops.activation import ACTIVATIONS, is_gated
from xpu_moe.ops.contract import Case, NoBackend, explain, select
from xpu_moe.triton import toolchain

U4 = Case("moe_u4", "cuda", "sm_90", "bfloat16", 16, 0, 3072, 384, 256, 8, 128, "u4", "silu", "int4", "sm90_mma")
BLOCK = dataclasses.replace(U4, op="moe_fp8_block", scheme="fp8_block", nibble="", layout="n_major", prepared=True)
PLAIN = dataclasses.replace(BLOCK, prepared=False, layout="up_gate")
TENSOR = dataclasses.replace(BLOCK, op="moe_fp8_tensor", scheme="fp8_tensor", prepared=False)
RELU2 = dataclasses.replace(TENSOR, activation="relu2_no_mul")


@pytest.fixture(autouse=True)
def everything_installed(monkeypatch):
    """A machine with a compiler, Triton and FlashInfer; tests take pieces away."""
    monkeypatch.setattr(compiler, "available", lambda: "nvrtc")
    monkeypatch.setattr(toolchain, "triton_version", lambda: "3.6.0")
    monkeypatch.setattr(flashinfer, "installed", lambda: "0.6.13")
    monkeypatch.delenv("FLASHINFER_DISABLE_JIT", raising=False)
    monkeypatch.delenv("XPU_MOE_BACKEND", raising=False)
    select.cache_clear()
    contract.backends.cache_clear()
    yield
    select.cache_clear()


def with_tokens(case: Case, tokens: int) -> Case:
    return dataclasses.replace(case, tokens=tokens, min_tokens=tokens)


TABLE = (
    (U4, "cuda_u4_decode", "one persistent launch"),
    (with_tokens(U4, 64), "cuda_u4_decode", "persistent"),
    (with_tokens(U4, 65), "triton_grouped", "Triton 3.6.0"),
    (BLOCK, "cuda_fp8_decode", "prepared inputs"),
    (with_tokens(BLOCK, 4096), "triton_grouped", "Triton"),
    (dataclasses.replace(BLOCK, prepared=False), "triton_grouped", "Triton"),
    (dataclasses.replace(PLAIN, preference="latency"), "flashinfer_cutlass", "sm_100"),
    (dataclasses.replace(PLAIN, preference="throughput"), "flashinfer_cutlass", "asked"),
    (TENSOR, "triton_grouped", "Triton"),
    (RELU2, "flashinfer_cutlass", r"\+48 %"),
    (dataclasses.replace(RELU2, preference="latency"), "flashinfer_cutlass", "latency means CUTLASS"),
    (dataclasses.replace(RELU2, activation="silu_no_mul"), "triton_grouped", "Triton"),
)  # fmt: skip


@pytest.mark.parametrize("case, backend, words", TABLE, ids=lambda v: v.describe()[:60] if isinstance(v, Case) else "")
def test_the_table_names_who_serves_and_why(case, backend, words):
    chosen = select(case)
    assert chosen.name == backend, explain(case)
    assert re.search(words, chosen.reason), chosen.reason
    assert selection.rule(case).backend == backend


def test_latency_without_a_gate_stores_cutlass_and_says_so(monkeypatch, capsys):
    """R8: the backend that is stored is the one that runs; the log names it."""
    monkeypatch.setenv("XPU_MOE_EXPLAIN", "1")
    chosen = select(dataclasses.replace(RELU2, preference="latency"))
    assert chosen.name == "flashinfer_cutlass"
    assert chosen.backend is next(b for b in contract.backends("cuda", "moe_fp8_tensor") if b.name == chosen.name)
    assert chosen.case.preference == "latency" and "sm_100" in chosen.reason
    line = capsys.readouterr().err
    assert "-> flashinfer_cutlass: latency" in line and "means CUTLASS" in line


@pytest.mark.parametrize(
    "take_away, words",
    (
        (lambda m: m.setattr(flashinfer, "installed", lambda: ""), "FlashInfer is not installed"),
        (lambda m: m.setattr(flashinfer, "installed", lambda: "0.4.1"), "FlashInfer 0.4.1: wanted 0.5 or later"),
        (lambda m: m.setenv("FLASHINFER_DISABLE_JIT", "1"), "FLASHINFER_DISABLE_JIT is set and fused_moe_90"),
    ),
)
def test_without_flashinfer_triton_serves_and_the_reason_is_kept(monkeypatch, take_away, words):
    """R15, R9: known when the choice is made, never an ImportError or an assertion in a call."""
    take_away(monkeypatch)
    chosen = select(RELU2)
    assert chosen.name == "triton_grouped"
    assert [name for name, _ in chosen.refused] == ["flashinfer_cutlass"] and words in chosen.refused[0][1]


def test_another_architecture_gets_triton_with_reasons():
    chosen = select(dataclasses.replace(U4, architecture="sm_80"))
    assert chosen.name == "triton_grouped" and "sm_80" in dict(chosen.refused)["cuda_u4_decode"]
    assert "sm_100" in flashinfer.refusal(dataclasses.replace(RELU2, architecture="sm_100"))


@pytest.mark.parametrize(
    "case, name, words",
    (
        (with_tokens(U4, 65), "cuda_u4_decode", "tokens 65: at most 64"),
        (dataclasses.replace(BLOCK, prepared=False), "cuda_fp8_decode", "PreparedInputs"),
        (BLOCK, "flashinfer_cutlass", "its block path quantises the activations itself"),
        (TENSOR, "flashinfer_cutlass", "gated weights are read as up_gate"),
        (dataclasses.replace(U4, dtype="float32"), "cuda_u4_decode", "dtype float32"),
        (dataclasses.replace(U4, layout="n_major"), "cuda_u4_decode", "layout 'n_major'"),
        (dataclasses.replace(U4, hidden_size=3000), "cuda_u4_decode", "hidden_size 3000: wanted a multiple of 128"),
        (dataclasses.replace(RELU2, intermediate_size=192), "flashinfer_cutlass", "wanted a multiple of 128"),
        (U4, "nobody", "unknown for moe_u4 on cuda"),
    ),
)
def test_a_backend_asked_for_that_cannot_serve_is_an_error(case, name, words):
    with pytest.raises(NoBackend, match=f"backend '{name}' cannot serve") as caught:
        select(case, name)
    assert words in str(caught.value)


def test_a_backend_asked_for_that_can_serve_is_taken_against_the_table():
    gated = dataclasses.replace(TENSOR, layout="up_gate")
    assert select(gated, "flashinfer_cutlass").name == "flashinfer_cutlass"
    assert selection.rule(gated).backend == "triton_grouped"


def test_refusals_need_no_device():
    """R13: a sentence for every answer, on this machine."""
    for backend in (*contract.backends("cuda", "moe_u4"), *contract.backends("cuda", "moe_fp8_block")):
        for case in (U4, BLOCK, dataclasses.replace(U4, top_k=40), dataclasses.replace(BLOCK, layout="odd")):
            assert backend.supports(case).reason.strip()


def test_nothing_to_compile_with_is_a_reason(monkeypatch):
    monkeypatch.setattr(compiler, "available", lambda: "")
    assert "no NVRTC and no nvcc" in decode.MoeU4().supports(U4).reason
    assert select(U4).name == "triton_grouped"


def test_one_definition_of_gated():
    """R11: the table, the adapter and the operators ask one function."""
    for activation in ACTIVATIONS:
        wanted = 16 if is_gated(activation) else 128
        assert flashinfer.pad_multiple(activation) == wanted
    assert flashinfer.ACTIVATIONS == {"silu": "Swiglu", "relu2_no_mul": "Relu2"}


def test_every_row_of_the_table_gives_a_reason_and_a_known_backend():
    known = {b.name for op in ("moe_u4", "moe_fp8_block", "moe_fp8_tensor") for b in contract.backends("cuda", op)}
    for row in selection.RULES:
        assert row.backend in known and len(row.reason) > 10
