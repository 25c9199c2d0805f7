"""The workspace only grows, keeps what it handed out, and does not grow under a capture."""

from __future__ import annotations

import pytest

from xpu_moe.esimd.runtime import workspace


def test_it_grows_and_keeps_every_buffer_alive():
    space = workspace.Workspace("cpu")
    small = space.get(100)
    assert space.get(40) is small
    large = space.get(150)
    assert large.numel() >= 150 and large is not small
    assert [buffer.data_ptr() for buffer in space.buffers] == [small.data_ptr(), large.data_ptr()]
    assert space.get(100) is large


def test_kept_buffers_stay_below_twice_the_largest():
    space = workspace.Workspace("cpu")
    for size in range(1, 2000, 7):
        assert space.get(size).numel() >= size
    sizes = [buffer.numel() for buffer in space.buffers]
    assert sum(sizes) <= 2 * sizes[-1]


def test_growing_while_a_graph_is_captured_is_an_error(monkeypatch):
    space = workspace.Workspace("cpu")
    space.reserve(64)
    monkeypatch.setattr(workspace, "_capturing", lambda device: True)
    assert space.get(64).numel() == 64
    with pytest.raises(workspace.GrowingDuringCapture, match="got 64 bytes, wanted 65"):
        space.get(65)
