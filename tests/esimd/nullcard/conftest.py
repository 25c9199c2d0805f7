"""Intel's current driver, fetched once for all tests of the session."""

from __future__ import annotations

import pytest

from xpu_moe.esimd.nullcard import packages


@pytest.fixture(scope="session")
def driver() -> packages.Driver:
    """From Debian's unstable archive, which is not in our hands: where it cannot be had, its tests are skipped."""
    try:
        return packages.fetch()
    except packages.Unavailable as error:
        pytest.skip(f"Intel's current driver: {str(error).splitlines()[0]}")
