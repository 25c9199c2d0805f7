"""Files that an argument names, looked at before any work."""

from __future__ import annotations

import os

import pytest

from xpu_moe import files


def test_a_picture_wants_a_file_in_a_folder_that_may_be_written(tmp_path, monkeypatch):
    picture = tmp_path / "a.png"
    files.check_picture("--plot", None)
    files.check_picture("--plot", picture)
    for wrong in (tmp_path / "gone" / "a.png", tmp_path / "a.jpg", tmp_path, tmp_path / f"{'a' * 300}.png"):
        with pytest.raises(ValueError, match=r"^--plot: got .*wanted a \.png file in a folder"):
            files.check_picture("--plot", wrong)
    os.mkfifo(picture)
    with pytest.raises(ValueError, match="which is a pipe, wanted"):
        files.check_picture("--plot", picture)
    picture.unlink()
    for place in (tmp_path, picture):  # the folder of a new picture, then the picture that exists
        monkeypatch.setattr(files.os, "access", lambda path, mode, place=place: path != place)
        with pytest.raises(ValueError, match=r"--plot: got .*a\.png', which may not be written"):
            files.check_picture("--plot", picture)
        picture.touch()


def test_a_folder_may_be_new_and_nothing_else(tmp_path, monkeypatch):
    for right in (tmp_path, tmp_path / "new"):
        files.check_folder("--asm", right)
    with pytest.raises(ValueError, match=r"^--asm: got .*there is no .*new'; wanted a folder"):
        files.check_folder("--asm", tmp_path / "new" / "one")
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.touch()
    os.mkfifo(pipe)
    for wrong, kind in ((file, "which is a file"), (pipe, "which is a pipe"), (file / "x" / "y", "file' is a file")):
        with pytest.raises(ValueError, match=f"^--asm: got .*{kind}, wanted a folder"):
            files.check_folder("--asm", wrong)
    monkeypatch.setattr(files.os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match="which may not be written"):
        files.check_folder("--asm", tmp_path / "new")
