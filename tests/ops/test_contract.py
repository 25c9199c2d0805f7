"""The dispatcher: written order, kept reasons, no silent fallback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xpu_moe.ops import contract
from xpu_moe.ops.contract import Backend, Case, NoBackend, Support, explain, select
from xpu_moe.ops.errors import BadArgument


class Stub:
    op = "stub"

    def __init__(self, name: str, reason: str | None = None):
        self.name, self.reason = name, reason

    def supports(self, case: Case) -> Support:
        return Support(self.reason is None, self.reason or "it can")

    def prepare(self, weights, case):
        return weights

    def workspace(self, case):
        return 0

    def run(self, *args, **kwargs):
        return self.name


@pytest.fixture
def room(monkeypatch):
    """Two backends that refuse and two that serve, in this order, on the CPU."""
    offered = (Stub("first", "group 48"), Stub("second"), Stub("third"), Stub("fourth", "no card"))
    monkeypatch.setattr(contract, "backends", lambda device, op: offered if op == "stub" else ())
    monkeypatch.setattr(contract, "offered", lambda device: (*offered, Stub("of another operator")))
    select.cache_clear()
    yield offered
    select.cache_clear()


CASE = Case(op="stub", device="cpu", tokens=4)


def test_the_first_that_supports_serves_and_refusals_are_kept(room):
    taken = select(CASE)
    assert (taken.name, taken.reason, taken.refused) == ("second", "it can", (("first", "group 48"),))
    assert taken.line() == "stub(device=cpu, tokens=4) -> second: it can; not first: group 48"
    assert isinstance(taken.backend, Backend)


def test_an_explicit_backend_is_taken_or_is_an_error(room):
    assert select(CASE, "third").name == "third"
    with pytest.raises(NoBackend, match="backend 'fourth' cannot serve.*no card"):
        select(CASE, "fourth")
    with pytest.raises(NoBackend, match="unknown for stub on cpu; known: first, second, third, fourth"):
        select(CASE, "fifth")


def test_the_environment_may_name_the_backend(room, monkeypatch):
    monkeypatch.setenv("XPU_MOE_BACKEND", "first")
    with pytest.raises(NoBackend, match="group 48"):
        select(CASE)


def test_the_environments_name_speaks_to_the_operators_that_have_it(room, monkeypatch):
    monkeypatch.setenv("XPU_MOE_BACKEND", "of another operator")
    assert select(CASE).name == "second"
    select.cache_clear()
    monkeypatch.setenv("XPU_MOE_BACKEND", "of nobody")
    with pytest.raises(NoBackend, match="'of nobody' cannot serve.*unknown for stub"):
        select(CASE)


def test_nobody_serves_tells_every_reason(monkeypatch):
    monkeypatch.setattr(contract, "backends", lambda device, op: (Stub("a", "too wide"), Stub("b", "too old")))
    with pytest.raises(NoBackend, match="a: too wide; b: too old") as error:
        select.__wrapped__(CASE)
    assert error.value.refused == (("a", "too wide"), ("b", "too old"))


def test_explain_asks_all_and_marks_the_one_taken(room):
    assert explain(CASE).splitlines() == [
        "stub(device=cpu, tokens=4)",
        "   first: no, group 48",
        " * second: yes, it can",
        "   third: yes, it can",
        "   fourth: no, no card",
    ]


def test_explain_variable_prints_one_line_a_new_case(room, monkeypatch, capsys):
    monkeypatch.setenv("XPU_MOE_EXPLAIN", "1")
    select(CASE)
    select(CASE)
    assert capsys.readouterr().err.splitlines() == [f"xpu_moe: {select(CASE).line()}"]


def test_an_unknown_device_kind_is_an_error():
    with pytest.raises(ValueError, match="device: got 'tpu', wanted one of cpu, cuda, xpu"):
        contract.backends("tpu", "moe_u4")


def test_importing_the_package_and_the_contract_loads_no_torch_and_no_device_room():
    program = (
        "import sys, time; start = time.process_time(); import xpu_moe; took = time.process_time() - start;"
        "import xpu_moe.ops, xpu_moe.formats.quantization, xpu_moe.device, xpu_moe.env.registry;"
        "bad = [m for m in sys.modules if m == 'torch' or m.startswith(('xpu_moe.cuda', 'xpu_moe.esimd', 'vllm'))];"
        "print(took < 0.2, bad)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["True", "[]\n"]


@pytest.mark.parametrize("judge", (select, explain))
def test_what_is_no_case_is_named(judge):
    for wrong, words in (
        (None, "^case: got NoneType, wanted a Case"), ("moe_u4", "^case: got str, wanted a Case"),
        (Case(op=3, device=None), r"^case\.op: got 3, wanted a string"),
        (Case(op="moe_u4", device=None), r"^case\.device: got None, wanted a string"),
        (Case("moe_u4", "cpu", group_size="x"), r"^case\.group_size: got 'x', wanted an integer"),
        (Case("moe_u4", "cpu", tokens=True), r"^case\.tokens: got True, wanted an integer"),
        (Case("moe_u4", "cpu", hidden_size=64.0), r"^case\.hidden_size: got 64.0, wanted an integer"),
        (Case("moe_u4", "cpu", prepared=1), r"^case\.prepared: got 1, wanted True or False"),
        (Case("moe_u4", "tpu"), "^device: got 'tpu', wanted one of cpu, cuda, xpu"),
    ):  # fmt: skip
        with pytest.raises(BadArgument, match=words):
            judge(wrong)


def test_an_operator_that_there_is_not_is_told_those_that_there_are_the_nearest_first():
    case = Case("moe_u5", "cpu")
    words = "op: got 'moe_u5', wanted one that cpu has: moe_u4, moe_u4_routed, "
    assert explain(case).splitlines()[-1].startswith(f"   nothing serves it ({words}")
    for backend in (None, "cpu_grouped"):
        with pytest.raises(NoBackend, match=words) as error:
            select(case, backend)
        assert all(f" {op}" in str(error.value) for op in ("all_reduce", "route_sigmoid_topk", "moe_fp8_block"))
    with pytest.raises(NoBackend, match="none is registered"):
        raise NoBackend(Case("moe_u4", "cpu"), [])
