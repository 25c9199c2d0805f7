"""Shared by all tests: a cache folder of their own, so that no test reads or writes the user's; signals and generated
examples that are the same whoever starts the tests, and where."""

from __future__ import annotations

import contextlib
import signal
import sys

import pytest

with contextlib.suppress(ImportError):  # tests of a room alone run without hypothesis
    from hypothesis import HealthCheck, settings

    # How long an example takes says how busy the machine is; the examples are the same in every run.
    settings.register_profile(
        "house", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("house")


@pytest.fixture(scope="session", autouse=True)
def signals() -> None:
    """What is ignored here (under nohup, behind a shell's `&`) is ignored by every child as well, unless something,
    be it nothing, is done here."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(autouse=True)
def draws() -> None:
    """What torch draws does not depend on the tests before."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


@pytest.fixture
def private_cache(tmp_path, monkeypatch):
    """An empty cache folder for this test alone."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XPU_MOE_CACHE", str(folder))
    return folder
