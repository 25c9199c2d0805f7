"""The parent's judgement of ends that come together: a death and a signal, a death and its echo."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from xpu_moe.probe._watch import supervise
from xpu_moe.probe._watch.footprint import Footprint
from xpu_moe.probe._watch.signals import Stop
from xpu_moe.probe._watch.supervise import Launch, Outcome, Supervisor

ECHO = {"event": "error", "kind": "RuntimeError", "text": "Read error: Connection reset by peer"}
BUSY = {"event": "phase", "phase": "timed", "step": "8 B"}


def watched(event: dict, end: str, others: bool = False, on_event=lambda *_: None) -> Outcome:
    """One rank, a shell that reports `event` and then does `end`."""
    footprint = Footprint()

    def command(events: int, _: Path) -> tuple[str, ...]:
        return ("bash", "-c", f'printf "%s\\n" "$0" >&{events}; {end}', json.dumps(event))

    with Stop() as stop:
        parent = Supervisor(footprint, footprint.folder, stop, 20.0, 20.0, lambda *a: on_event(stop, *a), others)
        try:
            return parent.run([Launch(0, command, {"PATH": "/usr/bin:/bin"})])
        finally:
            footprint.remove()


def test_a_death_is_seen_that_came_before_the_signal_that_it_caused():
    def asked_to_stop(stop: Stop, *_: object) -> None:
        time.sleep(0.5)  # the rank dies meanwhile
        stop.signal = signal.SIGTERM

    outcome = watched(BUSY, "kill -KILL $$", on_event=asked_to_stop)
    assert outcome.kind == "interrupted"
    assert [(r.ended, r.phase, r.done) for r in outcome.ranks] == [("killed by SIGKILL", "timed", False)]


@pytest.mark.parametrize("others", [True, False])
def test_an_echo_of_a_death_elsewhere_waits_for_the_parent_that_saw_it(others, monkeypatch):
    monkeypatch.setattr(supervise, "_LONG_GRACE_S", 30.0 if not others else 1.5)
    begun = time.monotonic()
    outcome = watched(ECHO, "exit 1", others)
    assert outcome.kind == "dead" and outcome.ranks[0].blame == 2
    took = time.monotonic() - begun
    assert took > 1.5 if others else took < 25


def test_a_rank_that_was_killed_does_not_wait_for_others(monkeypatch):
    monkeypatch.setattr(supervise, "_LONG_GRACE_S", 30.0)
    begun = time.monotonic()
    outcome = watched(BUSY, "kill -KILL $$", others=True)
    assert outcome.kind == "dead" and time.monotonic() - begun < 25
