"""The cache folder is private, or refused."""

from __future__ import annotations

import os
import stat

import pytest

from xpu_moe import cache


def test_it_is_made_private_in_every_part(private_cache):
    old = os.umask(0)
    try:
        made = cache.folder("kernels", "sm_90")
    finally:
        os.umask(old)
    for path in (private_cache, made.parent, made):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", (0o770, 0o707, 0o777, 0o720))
def test_one_that_others_may_write_to_is_refused(private_cache, mode):
    private_cache.mkdir()
    private_cache.chmod(mode)
    with pytest.raises(cache.UnsafeCache, match=f"mode {mode:04o} lets others write; run: chmod 700"):
        cache.folder()


def test_a_foreign_one_is_refused(private_cache, monkeypatch):
    private_cache.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: private_cache.stat().st_uid + 1)
    with pytest.raises(cache.UnsafeCache, match="owned by uid"):
        cache.folder()


def test_one_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XPU_MOE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(cache.UnsafeCache, match="Not a directory; set XPU_MOE_CACHE"):
        cache.folder()
