"""A rival is checked before it is timed, and whatever it does the row stays."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from xpu_moe.bench import suite
from xpu_moe.bench.rivals import Calls


@pytest.fixture
def calls():
    xs = [torch.full((2, 4), float(i + 1), dtype=torch.float64) for i in range(4)]
    routes = [SimpleNamespace(weights=torch.tensor(i), ids=torch.tensor(10 * i)) for i in range(4)]
    return Calls(suite.Setting("cpu", None, True, 2), xs, xs, routes, torch.zeros(2, 4), 3)


def test_every_call_goes_to_the_next_layer_with_its_own_routes(calls):
    seen = []

    def layer(index):
        return lambda x, weights, ids: seen.append((index, float(x[0, 0]), int(weights), int(ids))) or x

    found = calls.measure([layer(0), layer(1), layer(2)], calls.xs, calls.xs[0], 1e-9)
    assert found.us > 0 and found.error == 0
    once = [(0, 1.0, 0, 0), (1, 2.0, 1, 10), (2, 3.0, 2, 20), (0, 4.0, 3, 30)]
    assert seen == once[:1] + once * (1 + 3 * 2)  # the check, one round to warm up, rounds x repeats


@pytest.mark.parametrize("result", [1.2, float("nan")])
def test_who_computes_something_else_is_not_timed(calls, result):
    found = calls.measure([lambda x, *routes: x * result] * 2, calls.xs, calls.xs[0], 0.1)
    assert str(found.us).startswith("wrong: relative error") and "allowed 0.1" in str(found.us)


def test_who_fails_is_named_with_what_it_raised(calls, capsys):
    def broken(*given):
        raise ValueError("no tiles for this shape\nand more")

    assert calls.measure([broken], calls.xs, calls.xs[0], 0.1).us == "failed: ValueError: no tiles for this shape"
    assert "and more" in capsys.readouterr().err
    assert calls.bound(broken) == "failed: ValueError: no tiles for this shape"


def test_what_a_package_prints_while_it_loads_stays_out_of_stdout(calls, capsys):
    assert calls.bound(lambda text: print(text, file=sys.stdout) or "not installed", "INFO hello") == "not installed"
    printed = capsys.readouterr()
    assert printed.out == "" and "INFO hello" in printed.err
