"""What decides the content of an environment of ours, so that it is renewed for that and for nothing else.

`commands`  a key over the commands that make it: sources, pins, what is left out, the kind of Python, the folders
`needs`     our requirements in them, each as it is written. An environment that holds more than is wanted will do: what
            must not be there is left out by a recipe, which is part of `commands`
`package`   a key over what an editable install writes down of this checkout. Files that are added below a room need no
            new install; where only this changed, only the last step is run again
"""

from __future__ import annotations

import ast
import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from xpu_moe.launch.install.steps import Step

# of pyproject.toml's [project]: what stands in an installed distribution and is read when it runs
_RUNS = ("name", "scripts", "gui-scripts", "entry-points")


@dataclass(frozen=True)
class Content:
    """As it is wanted, or as it was made."""

    commands: str
    needs: tuple[str, ...]
    package: str

    def as_json(self) -> dict:
        return asdict(self)


def wanted(plan: Sequence[Step], project: Path) -> Content:
    """What an environment made by `plan` holds."""
    commands = [[list(step.same or _without(step, step.argv)), list(_without(step, step.otherwise))] for step in plan]
    needs = {need for step in plan for need in step.needs}
    return Content(_key(commands), tuple(sorted(needs)), _package(project))


def made(found: dict | None) -> Content | None:
    """What an environment's state says that it holds; None where it does not say."""
    try:
        kept = (found or {})["content"]
        return Content(str(kept["commands"]), tuple(map(str, kept["needs"])), str(kept["package"]))
    except (KeyError, TypeError):
        return None


def holds(have: Content | None, want: Content) -> bool:
    """Whether every package that is wanted is there, from the same sources, in the same place."""
    return have is not None and have.commands == want.commands and set(want.needs) <= set(have.needs)


def _without(step: Step, argv: Sequence[str]) -> list[str]:
    return [word for word in argv if word not in step.needs]


def _package(project: Path) -> str:
    declared = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    table = declared["project"]
    tools = declared.get("tool", {}).get("setuptools", {})
    return _key(
        [
            {name: table[name] for name in _RUNS if name in table},
            {name: value for name, value in tools.items() if name != "dynamic"},
            declared.get("build-system", {}),
            _rooms(project / "setup.py"),
        ]
    )


def _rooms(setup: Path) -> object:
    """The packages' folders in setup.py; its whole text where they are not written as they are now."""
    if not setup.exists():
        return None
    text = setup.read_text(encoding="utf-8")
    try:
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and [getattr(name, "id", "") for name in node.targets] == ["ROOMS"]:
                return ast.literal_eval(node.value)
    except (SyntaxError, ValueError):
        pass
    return text


def _key(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
