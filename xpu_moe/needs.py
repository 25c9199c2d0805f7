"""What a tool needs and this Python does not have, said in one line with what to type. Imports none of it."""

from __future__ import annotations

import importlib.util
import shlex
import sys


def missing(*modules: str) -> str:
    """The line for the modules that are not installed, whose names pip knows as well; "" where all are there."""
    lacking = [name for name in modules if importlib.util.find_spec(name) is None]
    return told(*lacking) if lacking else ""


def told(*names: str) -> str:
    """The line for modules that are known to be missing."""
    python, which = shlex.quote(sys.executable), " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return (
        f"{which} {'is' if len(names) == 1 else 'are'} not installed for {python}; take the environment that "
        f"scripts/serve_minimax.sh made (.venv/bin/python), or type: {python} -m pip install {' '.join(names)}"
    )
