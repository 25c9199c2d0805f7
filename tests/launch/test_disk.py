"""A disk that cannot hold an environment is told before the first download."""

from __future__ import annotations

import shutil

import pytest

from tests.launch.conftest import PROJECT
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import ENVIRONMENT, LaunchError
from xpu_moe.launch.install import execute, steps


def test_a_disk_that_is_too_small(tmp_path, monkeypatch):
    venv = tmp_path / "clone" / ".venv"
    venv.parent.mkdir()
    work = steps.Step("work", ("sh", "-c", f"mkdir {venv}/bin; touch {venv}/bin/python"), megabytes=4000)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=7 * 10**9))
    with pytest.raises(LaunchError, match=r"7\.0 GB are free .* 8\.0 GB are wanted") as caught:
        execute.ensure([work], PROJECT, venv, Console())
    assert caught.value.code == ENVIRONMENT and not venv.exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=8 * 10**9))
    execute.ensure([work], PROJECT, venv, Console())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    execute.ensure([work], PROJECT, venv, Console())  # it is there
