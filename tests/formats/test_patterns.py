"""Regular expressions of a checkpoint: matched as `re.search` matches, and never for ever."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from xpu_moe.demo.shape import Shape, quantization_config
from xpu_moe.formats import patterns
from xpu_moe.formats.claims import experts_of_layer
from xpu_moe.formats.patterns import EndlessPattern, is_tame, matching
from xpu_moe.formats.quantization import UnsupportedCheckpoint

ROUND = quantization_config(Shape(quant="auto-round"))
PACKED = quantization_config(Shape(quant="gptq"))
NAMES = [f"model.layers.7.block_sparse_moe.experts.{e}.{part}" for e in range(256) for part in ("w1", "w3", "w2")]

TAME = [
    r".*mlp\.gate.*", ".*gate$", ".*self_attn.*", r".*layers\.7\..*experts.*", r"layers\.(?:7|8)\..*w[12]$",
    r"experts\.(1|2|3)\.(w1|w3)", "", "w1|w2", r"[(*+?]", r"\(\*", r"[]*]+w1", r"[^]*+]+w1", "w2{1}",
]  # fmt: skip
WILD = [
    r"(a+)+$", r"(\w+\.)+w1", r"(?:[a-z]+)*1", r"(w)(1)\2", r"(?=w1)w", r"(?x) (w) 1", ".?.?.?.?w1",
    r"(e)(x)(p)erts", r"(\d){2}", r"(?P<e>w1)", "|".join("abcdefghijklmnopqrstu"),
]  # fmt: skip


@pytest.mark.parametrize("pattern", [*TAME, *WILD])
def test_what_is_matched_is_what_search_finds(pattern):
    assert is_tame(pattern) == (pattern in TAME)
    assert matching(pattern, NAMES) == {name for name in NAMES if re.search(pattern, name)}


ENDLESS = [r"^(\w+\.?)+!$", r"(.*)*x$", r"([\w.]|[\w.]{2})*!", ".*.*.*.*X", r"^(([a-z0-9])+.)+[A-Z]([a-z])+$"]


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_without_end_is_refused_by_its_text(pattern):
    begun = time.thread_time()
    with pytest.raises(EndlessPattern, match=re.escape(f"override {pattern!r}: got no end within 0.25 s")):
        matching(pattern, NAMES)
    assert time.thread_time() - begun < 2


def test_the_work_of_a_tame_pattern_is_bounded_too(monkeypatch):
    monkeypatch.setattr(patterns, "LIMIT_S", 0.01)
    assert is_tame(".*.*.*X")
    with pytest.raises(EndlessPattern, match="within 0.01 s"):
        matching(".*.*.*X", NAMES)


@pytest.mark.parametrize(
    "config",
    [{**ROUND, "extra_config": {ENDLESS[0]: {"bits": 16}}}, {**PACKED, "dynamic": {f"-:{ENDLESS[0]}": {}}}],
    ids=["auto-round", "gptq"],
)
def test_experts_beside_a_pattern_without_end_are_refused_at_once(config):
    """In a process of its own: without a bound this would hang whoever runs the tests."""
    program = f"from xpu_moe.formats.claims import experts_of_layer as e; e({config!r}, 61, 256)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "EndlessPattern: quantization_config override " in ended.stderr


def test_the_first_override_that_names_a_module_counts_and_later_ones_are_not_asked():
    whole = {**ROUND, "extra_config": {"block_sparse_moe.experts": {"bits": 4}, ".*experts.*": {"bits": 16}}}
    assert experts_of_layer(whole, 0, 4).spec is None  # `experts` alone names no expert
    first = {"model.layers.0.block_sparse_moe.experts": {"bits": 16}, r"^(\w+\.?)+!$": {"bits": 4}}
    assert experts_of_layer({**ROUND, "extra_config": first}, 0, 4).spec is None
    with pytest.raises(EndlessPattern):
        experts_of_layer({**ROUND, "extra_config": first}, 1, 4)


def test_where_no_child_can_be_started_it_is_said(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(UnsupportedCheckpoint, match="could not be tried in a process of its own .*No such file"):
        matching(r"(nobody+)+tried this", NAMES)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UnsupportedCheckpoint, match="exit code 1"):
        matching(r"(nobody+)+tried this", NAMES)
