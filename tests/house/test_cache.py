"""The cache folder is private, or refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

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
    with pytest.raises(cache.UnsafeCache, match=f"mode {mode:04o} lets others write; run: chmod 700 .*/cache$"):
        cache.folder()


def test_what_lies_in_it_is_ours_to_close(private_cache):
    cache.folder("kernels")
    (private_cache / "kernels" / "file").touch()
    (private_cache / "kernels").chmod(0o777)
    with pytest.raises(cache.UnsafeCache, match="run: chmod 700 .*/kernels$"):
        cache.folder("kernels")


def test_the_default_one_is_ours_to_close(tmp_path, monkeypatch):
    monkeypatch.delenv("XPU_MOE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "it's mine"))
    cache.folder("kernels")
    cache.folder().chmod(0o777)
    with pytest.raises(cache.UnsafeCache, match="run: chmod 700 '.*xpu_moe'$"):  # quoted for a shell
        cache.folder()


def sticky(folder: Path) -> None:
    folder.chmod(0o1777)


def in_use(folder: Path) -> None:
    (folder / "thesis.tex").touch()
    folder.chmod(0o775)


@pytest.mark.parametrize("make", (sticky, in_use))
def test_nobody_is_told_to_close_a_folder_that_serves_others(private_cache, make):
    """`chmod 700 /tmp`, typed by root, breaks the machine."""
    private_cache.mkdir()
    make(private_cache)
    with pytest.raises(cache.UnsafeCache, match="lets others write; set XPU_MOE_CACHE to a folder of yours") as told:
        cache.folder()
    assert "chmod" not in str(told.value)


def test_a_well_known_shared_folder_is_never_to_be_closed(private_cache, monkeypatch):
    """Not even one that has lost its sticky bit, and not by another name."""
    private_cache.mkdir()
    private_cache.chmod(0o777)
    other = private_cache.with_name("link")
    other.symlink_to(private_cache)
    monkeypatch.setattr(cache, "_SHARED", frozenset({private_cache.resolve()}))
    for place in (private_cache, other):
        monkeypatch.setenv("XPU_MOE_CACHE", str(place))
        with pytest.raises(cache.UnsafeCache, match="to a folder of yours, new or empty$"):
            cache.folder()


def test_a_folder_of_ones_own_in_the_shared_one_is_named_and_does(private_cache, monkeypatch):
    private_cache.mkdir()
    sticky(private_cache)
    with pytest.raises(cache.UnsafeCache) as told:
        cache.folder()
    named = str(told.value).rpartition("such as ")[2]
    assert Path(named).parent == private_cache and Path(named).name.startswith("xpu_moe-")
    monkeypatch.setenv("XPU_MOE_CACHE", named)
    assert stat.S_IMODE(cache.folder().stat().st_mode) == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: private_cache.stat().st_uid + 54321)  # /tmp for everybody but root
    monkeypatch.setenv("XPU_MOE_CACHE", str(private_cache))
    with pytest.raises(cache.UnsafeCache, match="owned by uid .* such as .*/xpu_moe-"):
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


@pytest.mark.parametrize("place", ("/dev/null", "/proc/x", "~nobody-of-that-name/cache"))
def test_one_that_cannot_be_a_folder_is_told(monkeypatch, place):
    monkeypatch.setenv("XPU_MOE_CACHE", place)
    with pytest.raises(cache.UnsafeCache, match=f"cache folder {place}: .*; set XPU_MOE_CACHE to a folder of yours"):
        cache.folder()
