"""Graphs are off unless every need is met and the replay probe has passed; the reason is always named."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpu_moe.plan.graph_policy import COMMUNICATOR, SKIP_ESTIMATE, Decision, Situation, decide

GOOD = Situation("xpu", vllm="0.26.0", torch="2.11.0+xpu", oneccl="2022.1.2", attention="FLASH_ATTN", world=4,
probe=True,
                 hooks=frozenset({SKIP_ESTIMATE}), versions={"xpu-kernels": "0.1.15"})  # fmt: skip
NEW = replace(GOOD, vllm="0.32.0", torch="2.14.0+xpu",
              versions={"xpu-kernels": "0.1.16", "compute-runtime": "26.27.38900", "loader": "1.32.0",
              "oneapi": "2026.1.1"})  # fmt: skip


def test_on_when_everything_is_proved():
    decision = decide(GOOD)
    assert decision.on and decision.mode == "PIECEWISE" and "FLASH_ATTN" in decision.reason
    assert decision.compilation_config() == {
        "cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [1, 2, 4], "use_inductor_graph_partition": True,
        "compile_sizes": [1],
    }  # fmt: skip
    assert decision.environment["VLLM_XPU_ENABLE_XPU_GRAPH"] == "1"
    assert decision.environment["CCL_SYCL_FORCE_RECORDING_PATH"] == "1"
    assert decision.environment["SYCL_UR_USE_LEVEL_ZERO_V2"] is None
    assert decision.pin_kv and decision.hooks == ()


def test_triton_attention_captures_whole_decode_steps():
    assert decide(replace(GOOD, attention="TRITON_ATTN")).mode == "FULL_DECODE_ONLY"


def test_newer_vllm_needs_the_hook_and_no_variable():
    decision = decide(NEW)
    assert decision.on and decision.hooks == (SKIP_ESTIMATE,)
    assert "VLLM_XPU_ENABLE_XPU_GRAPH" not in decision.environment


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"probe": None}, "has not passed"),
        ({"probe": False}, "failed"),
        ({"vllm": None}, "vllm is unknown"),
        ({"torch": None}, "torch is unknown"),
        ({"oneccl": None}, "oneCCL is unknown"),
        ({"oneccl": "2021.15.9"}, "oneCCL 2022.0"),
        ({"vllm": "0.21.0"}, "0.21 switches graphs off"),
        ({"vllm": "0.20.1"}, COMMUNICATOR),
        ({"torch": "2.10.0+xpu"}, "torch 2.11"),
        ({"versions": {"xpu-kernels": "0.1.14"}}, "atomic counter"),
        ({"environ": {"SYCL_UR_USE_LEVEL_ZERO_V2": "0"}}, "old adapter"),
        ({"wanted": False}, "as asked"),
        ({"vllm": "0.32.0", "hooks": frozenset()}, f"no hook {SKIP_ESTIMATE}"),
        ({"vllm": "0.32.0", "torch": "2.14.0+xpu", "versions": {"loader": "1.28.2"}}, "loader 1.32"),
    ],
)
def test_off_with_its_reason(change, word):
    decision = decide(replace(GOOD, **change))
    assert not decision.on and decision.mode == "NONE"
    assert any(word in reason for reason in decision.refused), decision.refused
    assert decision.reason.startswith("graphs are off: ")


def test_off_is_explicit_where_graphs_are_on_by_default():
    assert decide(replace(NEW, probe=None)).compilation_config() == {"cudagraph_mode": "NONE"}


def test_off_takes_the_old_variable_away():
    assert decide(replace(GOOD, probe=None)).environment == {"VLLM_XPU_ENABLE_XPU_GRAPH": None}


def test_one_card_needs_no_oneccl():
    assert decide(replace(GOOD, world=1, oneccl=None)).on
    assert "CCL_SYCL_FORCE_RECORDING_PATH" not in decide(replace(GOOD, world=1)).environment


def test_other_devices():
    assert decide(Situation("cpu")).mode == "NONE"
    assert decide(Situation("cuda")).compilation_config() == {}
    assert decide(Situation("cuda", wanted=False)).mode == "NONE"
    assert decide(Situation("rocm")).mode == "NONE"


@given(
    st.sampled_from([None, "0.17.0", "0.21.0", "0.26.0", "0.31.0", "0.32.0"]),
    st.sampled_from([None, "2.9.0", "2.11.0+xpu", "2.14.0+xpu"]),
    st.sampled_from([None, "2021.14.0", "2022.0.0", "2022.1.2"]),
    st.sampled_from([1, 2, 4, 8]), st.sampled_from([None, True, False]), st.booleans(),
)  # fmt: skip
def test_never_on_without_a_passed_probe(vllm, torch, oneccl, world, probe, hooks):
    found = decide(
        Situation("xpu", vllm, torch, oneccl, None, world, probe, hooks=frozenset({SKIP_ESTIMATE} if hooks else ()))
    )
    assert isinstance(found, Decision) and found.reason and found.as_dict()["reason"]
    assert not found.on or probe is True
    assert found.on or found.refused


def test_doctor_and_policy_agree_on_what_is_refused():
    """A plan that the policy turns on is healthy to the doctor's graph rule, and the other way round."""
    from tests.doctor.variants import B70, GRAPH_OK, changed
    from xpu_moe.doctor import judge

    for vllm, torch, oneccl in itertools.product(
        ("0.21.0", "0.26.0"), ("2.10.0+xpu", "2.11.0+xpu"), ("2021.15.9", "2022.1.2")
    ):
        decision = decide(replace(GOOD, vllm=vllm, torch=torch, oneccl=oneccl))
        facts = changed(B70, {**GRAPH_OK, "python/packages/vllm": vllm, "python/packages/torch": torch,
                              "libraries/1/version": oneccl})  # fmt: skip
        refused = any(f.about == "plan.graph" and f.severity == "error" for f in judge(facts, strict=True))
        assert decision.on is not refused
