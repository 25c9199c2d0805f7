"""The tuning tool: every knob gives a kernel that is right (emulated); the tool's path from arguments to its table."""

from __future__ import annotations

import json
import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from tests.cuda.decode import knobs, stamps, tune
from tests.cuda.decode.emulated import Card, Launcher, emulated
from tests.cuda.decode.soak import BOUND
from tests.cuda.decode.test_emulated import LAYERS, Call
from xpu_moe.cuda import compiler, jit
from xpu_moe.cuda.decode import launch
from xpu_moe.cuda.decode.plan import plan

OTHER = {
    "CONSUMERS": 8, "DEPTH": 3, "FEW_FINISHERS": 2, "FINISHERS": 4, "PARTIALS": 3, "GATHERERS": 3, "HIDDEN_BUFFERS": 1,
    "STAGE_EXPERTS": 2, "PAUSE": 0, "PIECES": 4, "LOOK": 1, "ONE_TOKEN_PIECES": 2,
}  # fmt: skip
SMALL = ["--hidden", "256", "--inter", "128", "--experts", "4", "--top-k", "2", "--calls", "3", "--rounds", "2"]


def test_every_knob_is_tried_here():
    assert OTHER.keys() == set(knobs.NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("bits", (4, 8))
@pytest.mark.parametrize("name", knobs.NAMES)
def test_every_knob_gives_a_kernel_that_is_right(name, bits):
    setting = {name: OTHER[name]}
    edit = partial(knobs.edited, setting=setting) if name in knobs.SOURCE else None
    with knobs.applied(setting, bits), emulated(Card(edit=edit, planned=knobs.planned)):
        for tokens in (1, 4, 6):
            assert Call(LAYERS[bits], tokens, tokens)().error() < BOUND


def test_a_setting_changes_the_build():
    shape = stamps.shape_of(tune._parser().parse_args([]))
    usual = launch.unit(plan(shape, 4, 132))
    for name in knobs.NAMES:
        if name == "FINISHERS":  # of more tokens
            continue
        size = 1 if name.startswith("ONE_TOKEN") else 4
        with knobs.applied({name: OTHER[name]}, 4):
            built = knobs.edited(launch.unit(knobs.planned(shape, size, 132)), {name: OTHER[name]})
        assert built != launch.unit(plan(shape, size, 132)), name
    assert launch.unit(knobs.planned(shape, 4, 132)) == usual


def test_a_constant_that_the_source_lost_is_an_error():
    unit = launch.unit(plan(stamps.shape_of(tune._parser().parse_args([])), 4, 132))
    lost = compiler.Program(unit.name, unit.text, unit.defines, tuple((name, "") for name, _ in unit.headers))
    with pytest.raises(ValueError, match=r"PAUSE: hidden.cuh has no 'constexpr int PAUSE = N;'"):
        knobs.edited(lost, {"PAUSE": 1})


@pytest.fixture
def card(monkeypatch):
    """An emulated card of 8 multiprocessors that takes 5 us a call, or 4 with a DEPTH of its own."""
    emulated_card = Card()
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=8))
    monkeypatch.setattr(compiler, "cubin", lambda unit, architecture: b"")
    monkeypatch.setattr(jit, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(jit, "stream", lambda device: 0)
    monkeypatch.setattr(stamps, "no_card", lambda: "")

    def loaded(unit, device):
        sizes = dict(unit.defines)
        shape = stamps.shape_of(tune._parser().parse_args([*SMALL, "--scheme", "u4"]))
        try:
            return Launcher(emulated_card, knobs.planned(shape, sizes["MAX_M"], sizes["BLOCKS"]), unit)
        except RuntimeError as error:
            raise compiler.CompileError(f"the compiler: {error}") from None

    monkeypatch.setattr(tune, "load", loaded)
    monkeypatch.setattr(tune.timing, "graph", lambda calls, rounds: SimpleNamespace(us=float(len(calls))))
    return emulated_card


RUN = partial(tune.tune, kind="cpu")


@pytest.mark.slow
def test_the_tool_builds_checks_and_times_every_setting(card, capsys):
    asked = ["--tokens", "2", "--vary", "DEPTH=3", "--vary", "CONSUMERS=8,9"]
    assert tune.main([*SMALL, *asked, "--json"], RUN) == 0
    found = json.loads(capsys.readouterr().out)
    settings = [{}, {"DEPTH": 3, "CONSUMERS": 8}, {"DEPTH": 3, "CONSUMERS": 9}]
    assert found["ok"] and [row["setting"] for row in found["rows"]] == settings
    product, eight, nine = found["rows"]
    assert product["us"] == eight["us"] == product["least"] == {"2": 3.0} and not product["said"]
    assert nine["us"] == {} and nine["said"].startswith("M 2: the compiler: ") and not nine["wrong"]


@pytest.mark.slow
def test_a_setting_whose_kernel_is_wrong_is_not_timed(card, capsys, monkeypatch):
    monkeypatch.setitem(knobs.SOURCE, "PAUSE", ("activate.cuh", "word[0] = 0x8000{}u;"))
    assert tune.main([*SMALL, "--tokens", "2", "--vary", "PAUSE=8000,4000"], RUN) == 0
    monkeypatch.setitem(knobs.SOURCE, "PAUSE", ("u4.cuh", "fmaf(counted(high), {}.f, counted(low))"))
    assert tune.main([*SMALL, "--tokens", "2", "--vary", "PAUSE=300"], RUN) == 1
    table = capsys.readouterr().out
    assert re.search(r"^PAUSE=300 +-  M 2: off by \d", table, re.M), table
    assert re.search(r"^as the product is +3.00 +3.00 1.000$", table, re.M), table


@pytest.mark.parametrize(
    "arguments,said",
    (
        (["--tokens", "0"], "--tokens: got '0'"),
        (["--tokens", "65"], "--tokens: got '65'"),
        (["--rounds", "0"], "--rounds"),
        (["--vary", "DEPTH=1,2,3,4,5,6,7,8,9,10,11,12", "--vary", "PAUSE=1,2,3,4,5,6,7,8,9,10,11"], "--vary: settings"),
    ),
)
def test_bad_arguments_are_named(arguments, said, capsys):
    assert tune.main([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["cannot"].startswith(said)


@pytest.mark.parametrize("text", ("DEPTH", "DEPTH=", "DEPTH=x", "SPEED=1", "DEPTH=1,-1"))
def test_a_bad_variation_says_what_there_is(text, capsys):
    with pytest.raises(SystemExit) as stop:
        tune.main(["--vary", text])
    assert stop.value.code == 2 and "STAGE_EXPERTS" in capsys.readouterr().err


def test_no_card_is_an_answer(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tune.main([]) == 2
    assert capsys.readouterr().err == "tune: no NVIDIA card: the kernels run on Hopper (sm_90)\n"
