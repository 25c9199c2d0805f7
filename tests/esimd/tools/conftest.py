"""Where the system's archive has no ocloc (Debian 13), the fetched one compiles for PVC as well."""

from __future__ import annotations

import contextlib
import shutil

import pytest

from xpu_moe.esimd.nullcard import packages


@pytest.fixture(scope="session", autouse=True)
def some_ocloc() -> None:
    if shutil.which("ocloc") is None:
        with contextlib.suppress(packages.Unavailable):  # the tests then name the package that is missing
            packages.fetch()
