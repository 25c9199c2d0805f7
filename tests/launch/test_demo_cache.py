"""The demo in the launcher's cache: written anew where it is damaged, never over somebody else's files."""

from __future__ import annotations

import os

import pytest

from xpu_moe.launch import demo
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import ENVIRONMENT, LaunchError
from xpu_moe.launch.model import check


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XPU_MOE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
def test_a_damaged_demo_is_written_anew_and_that_is_said(cache, capsys):
    folder = demo.ensure(Console())
    assert "replaced" not in capsys.readouterr().err
    shard = folder / "model-00001-of-00002.safetensors"
    whole = shard.read_bytes()
    os.truncate(shard, 1000)
    assert demo.ensure(Console()) == folder
    told = capsys.readouterr().err
    assert f"demo: replaced {folder}" in told and f"demo: kept {folder}.kept-" in told
    assert shard.read_bytes() == whole and check(str(folder)).path == folder
    demo.ensure(Console())
    assert "replaced" not in capsys.readouterr().err


@pytest.mark.parametrize("place", (demo.NAME, demo.NAME + "-deq"))
@pytest.mark.parametrize("kind", ("file", "folder"))
def test_what_is_in_its_place_is_named_with_what_to_do(cache, place, kind):
    cache.mkdir(0o700)
    (cache / "demo").mkdir(0o700)
    path = cache / "demo" / place
    if kind == "folder":
        path.mkdir()
    (path / "notes.txt" if kind == "folder" else path).write_text("precious")
    with pytest.raises(LaunchError) as refused:
        demo.ensure(Console())
    wrong = "holds notes.txt, not written by this tool" if kind == "folder" else "exists and is no folder"
    wanted = f"demo: {path}: {wrong}; move {path} away, or set XPU_MOE_CACHE to another folder"
    assert str(refused.value) == wanted and refused.value.code == ENVIRONMENT
    assert (path / "notes.txt" if kind == "folder" else path).read_text() == "precious"
