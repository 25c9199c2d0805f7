"""What the Intel backends refuse, each with its reason, on any machine; and in which order they are asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xpu_moe.esimd import ops as room
from xpu_moe.esimd.runtime.library import RuntimeFailure
from xpu_moe.esimd.runtime.libsycl import LibsyclError
from xpu_moe.esimd.runtime.moe import Moe
from xpu_moe.esimd.runtime.room import ESIMD, TWINS
from xpu_moe.ops import contract
from xpu_moe.ops.contract import Case

MINIMAX_TP4 = Case(
    op="moe_u4", device="xpu", dtype="float16", tokens=4, hidden_size=3072, intermediate_size=384, num_experts=256,
    top_k=8, group_size=128, nibble="u4", activation="silu", scheme="int4",
)  # fmt: skip
GPU = {"name": "Arc", "driver": "1", "usm_device": True, "esimd": True, "sub_group_sizes": [16, 32]}


class FakeSession:
    def __init__(self, **facts):
        self.device = GPU | facts
        self.loaded = []

    def load(self, room, module):
        self.loaded.append((room.name, module))


@pytest.fixture(autouse=True)
def modules_are_there(monkeypatch):
    monkeypatch.setattr(type(ESIMD), "missing", lambda self, module: None)


def backend(kind=Moe, of=ESIMD, **facts):
    session = FakeSession(**facts)
    return kind(of, lambda index: session)


@pytest.mark.parametrize("nibble", ["u4", "s4"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("inter", "group"), [(384, 128), (768, 128), (1536, 128), (192, 64), (192, 32)])
def test_minimax_is_served(nibble, dtype, inter, group):
    case = replace(MINIMAX_TP4, nibble=nibble, dtype=dtype, intermediate_size=inter, group_size=group, tokens=64)
    assert backend().supports(case).ok


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"intermediate_size": 192}, "intermediate_size 192 is not a multiple of group_size 128"),
        ({"hidden_size": 3000}, "hidden_size 3000 is not a multiple of group_size 128"),
        ({"group_size": 256}, "group_size 256, wanted 32, 64, 128"),
        ({"tokens": 65}, "65 tokens, wanted at most 64"),
        ({"dtype": "float32"}, "activations are float32, wanted float16 or bfloat16"),
        ({"top_k": 17}, "top_k 17, wanted 1..16"),
        ({"top_k": 0}, "top_k 0, wanted 1..16"),
        ({"nibble": "i4"}, "nibble 'i4', wanted u4 or s4"),
        ({"layout": "k_major"}, "layout 'k_major', wanted n_major"),
        ({"activation": "gelu"}, "activation 'gelu', wanted one of silu"),
        ({"weights_dtype": "float64"}, "route weights are float64"),
        ({"num_experts": 0}, "num_experts 0"),
    ],
)
@pytest.mark.parametrize("of", [ESIMD, TWINS], ids=lambda room: room.name)
def test_what_is_not_served_is_refused_with_the_reason(of, change, reason):
    answer = backend(of=of).supports(replace(MINIMAX_TP4, **change))
    assert not answer.ok and reason in answer.reason


@pytest.mark.parametrize(
    ("of", "facts", "reason"),
    [
        (ESIMD, {"esimd": False}, "Arc (driver 1) lacks the aspect ext_intel_esimd: its driver has no vector back end"),
        (TWINS, {"sub_group_sizes": [8, 32]}, "Arc (driver 1) has no sub-group of 16, only [8, 32]"),
        (TWINS, {"usm_device": False}, "Arc (driver 1) has no device USM"),
    ],
)
def test_what_a_device_lacks_is_the_reason(of, facts, reason):
    answer = backend(of=of, **facts).supports(MINIMAX_TP4)
    assert not answer.ok and answer.reason == reason


def test_a_device_without_the_vector_back_end_gets_the_twin_and_the_reason_is_kept(monkeypatch):
    session = FakeSession(esimd=False)
    offered = (Moe(ESIMD, lambda index: session), Moe(TWINS, lambda index: session))
    monkeypatch.setattr(contract, "backends", lambda device, op: offered)
    contract.select.cache_clear()
    taken = contract.select(MINIMAX_TP4)
    contract.select.cache_clear()
    assert taken.name == "sycl_twin"
    assert [name for name, _ in taken.refused] == ["esimd"] and "vector back end" in taken.refused[0][1]


def test_a_module_that_the_driver_refuses_is_a_refusal_and_the_twin_is_taken(monkeypatch):
    class Refusing(FakeSession):
        def load(self, room, module):
            if room is ESIMD:
                raise RuntimeFailure("the driver refuses the module: build failure")

    session = Refusing()
    offered = (Moe(ESIMD, lambda index: session), Moe(TWINS, lambda index: session))
    monkeypatch.setattr(contract, "backends", lambda device, op: offered)
    contract.select.cache_clear()
    taken = contract.select(MINIMAX_TP4)
    contract.select.cache_clear()
    assert taken.name == "sycl_twin" and taken.refused == (("esimd", "the driver refuses the module: build failure"),)


def test_a_runtime_that_cannot_be_had_is_a_refusal_and_no_exception():
    def broken(index):
        raise LibsyclError("libsycl: got 2 copies in this process")

    answer = Moe(ESIMD, broken).supports(MINIMAX_TP4)
    assert not answer.ok and "got 2 copies" in answer.reason


def test_a_missing_module_is_named(monkeypatch):
    monkeypatch.undo()
    lost = replace(ESIMD, folder=ESIMD.folder / "nowhere")
    answer = Moe(lost, lambda index: FakeSession()).supports(MINIMAX_TP4)
    assert not answer.ok and "nowhere/moe_u4_f16_g128.spv is missing" in answer.reason
    assert "python -m xpu_moe.esimd build" in answer.reason


@pytest.mark.parametrize(
    ("op", "change", "reason"),
    [
        ("moe_u4_routed", {"num_experts": 513}, "num_experts 513, wanted at most 512"),
        ("route_sigmoid_topk", {"num_experts": 513}, "num_experts 513, wanted at most 512"),
        ("route_sigmoid_topk", {"top_k": 17}, "top_k 17"),
        ("qk_rms_partial", {"q_size": 1536, "kv_size": 100}, "kv_size 100, wanted a multiple of 32"),
        ("qk_rms_apply", {"q_size": 1540, "kv_size": 256}, "q_size 1540, wanted a multiple of 32"),
        ("qk_rms_apply", {"dtype": "float32", "q_size": 32, "kv_size": 32}, "qkv is float32"),
    ],
)
def test_the_other_operators_have_reasons_too(op, change, reason):
    for offered in (made for made in room.BACKENDS if made.op == op):
        assert reason in offered.refusal(replace(MINIMAX_TP4, op=op, **change))


def test_every_operator_is_offered_by_esimd_first_and_its_twin_second():
    order: dict[str, list[str]] = {}
    for offered in room.BACKENDS:
        order.setdefault(offered.op, []).append(offered.name)
    ops = {"moe_u4", "moe_u4_routed", "route_sigmoid_topk", "qk_rms_partial", "qk_rms_apply"}
    assert order == {op: ["esimd", "sycl_twin"] for op in ops}
