"""What the backends answer without Triton and without a card, and what the workspace of the products holds."""

from __future__ import annotations

import dataclasses

import pytest

from xpu_moe.ops import contract
from xpu_moe.ops.contract import Case
from xpu_moe.triton import grouped, toolchain
from xpu_moe.triton.grouped import U4, Fp8Block, Fp8Tensor, layout, tiles
from xpu_moe.triton.rms import Apply, Partial, blocks

CASE = Case("moe_u4", "cuda", "sm_90", "bfloat16", 2048, 0, 3072, 384, 256, 8, 128, "u4", "silu", "int4")
FP8 = dataclasses.replace(CASE, op="moe_fp8_block", scheme="fp8_block", nibble="")
NORM = Case("qk_rms_partial", "cuda", "sm_90", "bfloat16", 4, 4, q_size=1536, kv_size=256)


def test_without_triton_it_says_so(monkeypatch):
    monkeypatch.setattr(toolchain, "triton_version", lambda: None)
    for backend in (U4(), Fp8Block(), Fp8Tensor(), Partial(), Apply()):
        support = backend.supports(dataclasses.replace(CASE, op=backend.op))
        assert not support and support.reason == "Triton is not installed"


@pytest.mark.parametrize(
    "backend, case, words",
    (
        (U4(), dataclasses.replace(CASE, architecture="sm_75"), "sm_75: Triton needs sm_80"),
        (U4(), dataclasses.replace(CASE, layout="odd"), "it reads n_major and sm90_mma"),
        (U4(), dataclasses.replace(CASE, layout="sm90_mma", nibble="s4"), "layout sm90_mma holds u4"),
        (U4(), dataclasses.replace(CASE, intermediate_size=96), "intermediate_size 96: wanted a multiple of 64"),
        (U4(), dataclasses.replace(CASE, device="xpu", architecture="bmg-g31"), "XPU needs Intel's build"),
        (Partial(), dataclasses.replace(NORM, architecture="sm_75"), "sm_75: Triton needs sm_80"),
        (Apply(), dataclasses.replace(NORM, device="xpu", architecture="bmg-g31"), "XPU needs Intel's build"),
        (Fp8Block(), dataclasses.replace(FP8, intermediate_size=192), "the scale block, 128"),
        (Fp8Block(), dataclasses.replace(FP8, layout="up_gate"), "it reads n_major"),
    ),
)
def test_a_refusal_names_the_field(monkeypatch, backend, case, words):
    monkeypatch.setattr(toolchain, "triton_version", lambda: "3.6.0")
    monkeypatch.setattr(toolchain, "vendors", lambda: ("nvidia", "amd"))
    assert words in backend.supports(case).reason


def test_both_accelerators_are_served_where_their_triton_is(monkeypatch):
    monkeypatch.setattr(toolchain, "triton_version", lambda: "3.6.0")
    monkeypatch.setattr(toolchain, "vendors", lambda: ("intel",))
    assert U4().supports(CASE) and U4().supports(dataclasses.replace(CASE, device="xpu", architecture="bmg-g31"))
    assert U4().supports(dataclasses.replace(CASE, layout="sm90_mma"))


@pytest.mark.parametrize("half", (Partial(), Apply()), ids=("partial", "apply"))
def test_the_norms_halves_come_after_the_cards_own_and_before_plain_torch(monkeypatch, half):
    monkeypatch.setattr(toolchain, "triton_version", lambda: "3.6.0")
    monkeypatch.setattr(toolchain, "vendors", lambda: ("intel",))
    names = {kind: [backend.name for backend in contract.backends(kind, half.op)] for kind in ("cuda", "xpu", "cpu")}
    assert names["cuda"] == ["triton_rms", "torch"]
    assert names["xpu"][-2:] == ["triton_rms", "torch"] and len(names["xpu"]) == 4
    assert "triton_rms" not in names["cpu"]
    for kind, architecture in (("cuda", "sm_90"), ("xpu", "bmg-g31")):
        support = half.supports(dataclasses.replace(NORM, op=half.op, device=kind, architecture=architecture))
        assert support and support.reason == "Triton 3.6.0, one launch, a program a row"


@pytest.mark.parametrize("size", (1, 2, 33, 256, 1000, 4096, 5000, 100_000))
def test_a_programs_columns_are_a_power_of_two_that_holds_the_row_or_the_widest(size):
    found = blocks(size, 1)
    assert found["BLOCK_Q"].bit_count() == 1 and min(size, 4096) <= found["BLOCK_Q"] < 2 * size
    assert found["BLOCK_K"] == 1 and found["num_warps"] in (4, 8)


@pytest.mark.parametrize("device", ("cuda", "xpu"))
@pytest.mark.parametrize("tokens", (1, 7, 64, 2048, 10000))
def test_the_workspace_holds_every_smaller_call(tokens, device):
    """A prefill slot is asked once for its largest M and called with all smaller ones."""
    room = U4().workspace(dataclasses.replace(CASE, tokens=tokens, device=device))
    for size in {1, tokens // 3, tokens // 2, tokens - 1, tokens} - {0}:
        chunk = min(size, grouped.CHUNK)
        block = tiles("int4", chunk, 8, 256, 128, device).m
        assert layout(chunk, 8, 256, 3072, 384, block, 2).total <= room, (size, block)
