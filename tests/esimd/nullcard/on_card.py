"""What tests of the card that is not there share: the driver, and a program run in a process that finds the card."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from xpu_moe.env import read
from xpu_moe.esimd.nullcard import card, packages
from xpu_moe.esimd.runtime import standalone

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def driver() -> packages.Driver:
    """From Debian's unstable archive, which is not in our hands: where it cannot be had, its tests are skipped."""
    try:
        return packages.fetch()
    except packages.Unavailable as error:
        pytest.skip(f"Intel's current driver: {str(error).splitlines()[0]}")


def answer(driver: packages.Driver, program: Path, *arguments: str) -> dict[str, Any]:
    """The JSON object that a program prints on a B70 that is not there; its first argument is libsycl's folder."""
    libraries = standalone.environment() / "lib"
    environ = card.environment(driver, card.CARDS["b70"], {**read.snapshot(), "PYTHONPATH": str(ROOT)})
    command = card.python(driver, [str(program), str(libraries), *arguments], [libraries])
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
