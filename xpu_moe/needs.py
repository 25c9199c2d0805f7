"""What a tool needs and this Python does not have, or cannot import, said in one line with what to type."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import sys

_LONGEST = 240  # characters of an import's error


def unusable(*modules: str) -> str:
    """`missing`, else `broken`: "" where all of them are there and import."""
    return missing(*modules) or broken(*modules)


def missing(*modules: str) -> str:
    """The line for the modules that are not installed, whose names pip knows as well; "" where all are there. Imports
    none of them."""
    lacking = [name for name in modules if importlib.util.find_spec(name) is None]
    return told(*lacking) if lacking else ""


def broken(*modules: str) -> str:
    """The line for the first of these installed modules that does not import; "" where all do. Imports them."""
    for name in modules:
        try:
            module = importlib.import_module(name)
        except Exception as error:  # half an installation fails in any way
            lacking = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
            return told(lacking) if lacking and lacking != name else _unloadable(name, _shown(error))
        if getattr(module, "__file__", None) is None:  # a folder of that name, left by an uninstallation
            return _unloadable(name, f"no package, but a folder without one: {', '.join(module.__path__)}")
    return ""


def _unloadable(name: str, why: str) -> str:
    python = shlex.quote(sys.executable)
    return (
        f"{name} is installed for {python} and does not import ({why}); take the environment that "
        f"scripts/serve_minimax.sh made (.venv/bin/python), or type: {python} -m pip install --force-reinstall {name}"
    )


def _shown(error: BaseException) -> str:
    """The error that was at the bottom of it, on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def told(*names: str) -> str:
    """The line for modules that are known to be missing."""
    python, which = shlex.quote(sys.executable), " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return (
        f"{which} {'is' if len(names) == 1 else 'are'} not installed for {python}; take the environment that "
        f"scripts/serve_minimax.sh made (.venv/bin/python), or type: {python} -m pip install {' '.join(names)}"
    )
