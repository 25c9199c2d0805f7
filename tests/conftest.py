"""Shared by all tests: a cache folder of their own, so that no test reads or writes the user's."""

from __future__ import annotations

import pytest


@pytest.fixture
def private_cache(tmp_path, monkeypatch):
    """An empty cache folder for this test alone."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XPU_MOE_CACHE", str(folder))
    return folder
