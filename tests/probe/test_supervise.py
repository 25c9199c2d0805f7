"""The parent's judgement of ends that come together: a death and a signal, a death and its echo."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from xpu_moe.probe._watch import supervise
from xpu_moe.probe._watch.footprint import Footprint
from xpu_moe.probe._watch.signals import Stop
from xpu_moe.probe._watch.supervise import Launch, Outcome, Supervisor

ECHO = {"event": "error", "kind": "RuntimeError", "text": "Read error: Connection reset by peer"}
BUSY = {"event": "phase", "phase": "timed", "step": "%s"}
HELLO = {"event": "hello", "library": {"name": "gloo", "version": "1"}}


def watched(*events: dict, end: str, others: bool = False, on_event=lambda *_: None, limits=(20.0, 20.0)) -> Outcome:
    """One rank, a shell that reports `events` (%s: its process id) and then does `end`."""
    told = "\n".join(map(json.dumps, events))
    footprint = Footprint()

    def command(events: int, _: Path) -> tuple[str, ...]:
        return ("bash", "-c", f'printf "$0\\n" $$ >&{events}; {end}', told)

    with Stop() as stop:
        parent = Supervisor(footprint, footprint.folder, stop, *limits, lambda *a: on_event(stop, *a), others)
        try:
            return parent.run([Launch(0, command, {"PATH": "/usr/bin:/bin"})])
        finally:
            footprint.remove()


def test_a_death_is_seen_that_came_before_the_signal_that_it_caused():
    def asked_to_stop(stop: Stop, _: int, event: dict) -> None:
        os.waitid(os.P_PID, int(event["step"]), os.WEXITED | os.WNOWAIT)  # the rank dies meanwhile
        stop.signal = signal.SIGTERM

    outcome = watched(BUSY, end="kill -KILL $$", on_event=asked_to_stop)
    assert outcome.kind == "interrupted"
    assert [(r.ended, r.phase, r.done) for r in outcome.ranks] == [("killed by SIGKILL", "timed", False)]


@pytest.mark.parametrize("others", [True, False])
def test_an_echo_of_a_death_elsewhere_waits_for_the_parent_that_saw_it(others, monkeypatch):
    monkeypatch.setattr(supervise, "_LONG_GRACE_S", 30.0 if not others else 1.5)
    begun = time.monotonic()
    outcome = watched(ECHO, end="exit 1", others=others)
    assert outcome.kind == "dead" and outcome.ranks[0].blame == 2
    took = time.monotonic() - begun
    assert took > 1.5 if others else took < 25


def test_a_rank_that_was_killed_does_not_wait_for_others(monkeypatch):
    monkeypatch.setattr(supervise, "_LONG_GRACE_S", 30.0)
    begun = time.monotonic()
    outcome = watched(BUSY, end="kill -KILL $$", others=True)
    assert outcome.kind == "dead" and time.monotonic() - begun < 25


@pytest.mark.slow
@pytest.mark.parametrize(("others", "phase", "limit"), [(True, "init", 4), (True, "warmup", 1), (False, "init", 1)])
def test_a_rank_that_waits_for_ranks_of_other_parents_has_the_time_of_a_start(others, phase, limit):
    """They load their libraries meanwhile, and nobody here hears of it."""
    outcome = watched(HELLO, {**BUSY, "phase": phase}, end="exec sleep 600", others=others, limits=(1.0, 4.0))
    assert (outcome.kind, outcome.says) == ("hang", f"no rank reported anything for {limit} s")
