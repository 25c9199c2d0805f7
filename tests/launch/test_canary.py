"""Answers that break off are no answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from xpu_moe.launch.canary import CanaryFailed, Client


@contextmanager
def answering(said: bytes) -> Iterator[Client]:
    """A server that says `said` to one request and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as caller:
                caller.recv(1 << 16)
                caller.sendall(said)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "m", timeout=60)
        thread.join(60)


def test_an_answer_that_breaks_off_is_a_failure_in_one_line():
    for status, words in (("200 OK", "IncompleteRead"), ("500 Oh", "HTTP 500: Oh")):
        said = f'HTTP/1.1 {status}\r\nContent-Length: 100\r\n\r\n{{"data"'.encode()
        with answering(said) as client, pytest.raises(CanaryFailed, match=f"/v1/models: {words}"):
            client.first_model()


def test_what_speaks_no_http_is_not_healthy():
    with answering(b"220 mail.example ESMTP\r\n") as client:
        assert not client.health()
