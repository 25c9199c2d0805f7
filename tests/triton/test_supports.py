"""What the grouped products answer without Triton and without a card, and what their workspace holds."""

from __future__ import annotations

import dataclasses

import pytest

from xpu_moe.ops.contract import Case
from xpu_moe.triton import grouped
from xpu_moe.triton.grouped import U4, Fp8Block, Fp8Tensor, layout, tiles

CASE = Case("moe_u4", "cuda", "sm_90", "bfloat16", 2048, 0, 3072, 384, 256, 8, 128, "u4", "silu", "int4")
FP8 = dataclasses.replace(CASE, op="moe_fp8_block", scheme="fp8_block", nibble="")


def test_without_triton_it_says_so(monkeypatch):
    monkeypatch.setattr(grouped, "triton_version", lambda: None)
    for backend in (U4(), Fp8Block(), Fp8Tensor()):
        support = backend.supports(CASE)
        assert not support and support.reason == "Triton is not installed"


@pytest.mark.parametrize(
    "backend, case, words",
    (
        (U4(), dataclasses.replace(CASE, architecture="sm_75"), "sm_75: Triton needs sm_80"),
        (U4(), dataclasses.replace(CASE, layout="odd"), "it reads n_major and sm90_mma"),
        (U4(), dataclasses.replace(CASE, layout="sm90_mma", nibble="s4"), "layout sm90_mma holds u4"),
        (U4(), dataclasses.replace(CASE, intermediate_size=96), "intermediate_size 96: wanted a multiple of 64"),
        (U4(), dataclasses.replace(CASE, device="xpu", architecture="bmg-g31"), "XPU needs Intel's build"),
        (Fp8Block(), dataclasses.replace(FP8, intermediate_size=192), "the scale block, 128"),
        (Fp8Block(), dataclasses.replace(FP8, layout="up_gate"), "it reads n_major"),
    ),
)
def test_a_refusal_names_the_field(monkeypatch, backend, case, words):
    monkeypatch.setattr(grouped, "triton_version", lambda: "3.6.0")
    monkeypatch.setattr(grouped, "vendors", lambda: ("nvidia", "amd"))
    assert words in backend.supports(case).reason


def test_both_accelerators_are_served_where_their_triton_is(monkeypatch):
    monkeypatch.setattr(grouped, "triton_version", lambda: "3.6.0")
    monkeypatch.setattr(grouped, "vendors", lambda: ("intel",))
    assert U4().supports(CASE) and U4().supports(dataclasses.replace(CASE, device="xpu", architecture="bmg-g31"))
    assert U4().supports(dataclasses.replace(CASE, layout="sm90_mma"))


@pytest.mark.parametrize("tokens", (1, 7, 64, 2048, 10000))
def test_the_workspace_holds_every_smaller_call(tokens):
    """A prefill slot is asked once for its largest M and called with all smaller ones."""
    room = U4().workspace(dataclasses.replace(CASE, tokens=tokens))
    for size in {1, tokens // 3, tokens // 2, tokens - 1, tokens} - {0}:
        chunk = min(size, grouped.CHUNK)
        block = tiles("int4", chunk, 8, 256, 128).m
        assert layout(chunk, 8, 256, 3072, 384, block, 2).total <= room, (size, block)
