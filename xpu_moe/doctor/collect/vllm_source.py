"""What the installed vLLM knows, read in its source files: parsers, names of variables. vLLM is not imported."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xpu_moe.env import library

# kind -> folders of the package, newest layout first
_FOLDERS = {
    "tool": ("tool_parsers", "entrypoints/openai/tool_parsers"),
    "reasoning": ("reasoning",),
}
_DECORATED = re.compile(r"register_module\(\s*(?:name\s*=\s*)?\[?\s*((?:[\"'][\w.-]+[\"']\s*,?\s*)+)")
_QUOTED = re.compile(r"[\"']([\w.-]+)[\"']")


def parsers(package: Path | None = None) -> dict[str, list[str]]:
    """kind -> names of the parsers that this vLLM registers; {} without vLLM."""
    folder = package or _package()
    found: dict[str, list[str]] = {}
    for kind, places in _FOLDERS.items() if folder else ():
        names = {name for place in places for name in _names(folder / place)} if folder else set()
        if names:
            found[kind] = sorted(names)
    return found


def variables() -> dict[str, Any] | None:
    """A row for the facts' libraries: the variables that vLLM's envs.py names."""
    names = library.vllm_names()
    return {"name": "vllm/envs.py", "env_names": sorted(names)} if names else None


def _package() -> Path | None:
    spec = importlib.util.find_spec("vllm")
    places = spec.submodule_search_locations if spec else None
    return Path(next(iter(places))) if places else None


def _names(folder: Path) -> Iterator[str]:
    for file in sorted(folder.glob("*.py")):
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if "PARSERS_TO_REGISTER" in text:
            yield from _table(text)
        for call in _DECORATED.findall(text):
            yield from _QUOTED.findall(call)


def _table(text: str) -> Iterator[str]:
    """The keys of `_…_PARSERS_TO_REGISTER = {name: (file, class)}`."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id.endswith("PARSERS_TO_REGISTER"):
                yield from (str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))
