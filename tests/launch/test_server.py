"""The reader of the server's log: what else is seen of the server waits until its lines are taken."""

from __future__ import annotations

import os
import time

from tests.launch.conftest import until
from xpu_moe.launch.secrets import Masker
from xpu_moe.launch.server import Server


def test_lines_that_were_written_are_taken_however_slow_the_reader_is(tmp_path):
    taken: list[str] = []

    def slowly(line: str) -> None:
        time.sleep(0.2)
        taken.append(line)

    script = f"echo one; echo two; echo three; touch '{tmp_path}/written'; sleep 600"
    server = Server(("sh", "-c", script), os.environ, tmp_path / "log", Masker(()), slowly)
    try:
        until((tmp_path / "written").exists, 20)
        server.read_up(60)
        assert taken == ["one", "two", "three"]
        begun = time.monotonic()
        server.read_up(600)  # nothing to wait for
        assert time.monotonic() - begun < 60
    finally:
        server.stop()


def test_the_last_lines_of_a_server_that_ended_are_taken(tmp_path):
    taken: list[str] = []

    def slowly(line: str) -> None:
        time.sleep(0.2)
        taken.append(line)

    server = Server(("sh", "-c", "echo one; printf two"), os.environ, tmp_path / "log", Masker(()), slowly)
    try:
        until(lambda: server.poll() is not None, 20)
        server.read_up(60)
        assert taken == ["one", "two"]
    finally:
        server.stop()
