"""`python -m xpu_moe.<room> <subcommand>`: one file a subcommand, found in the room's folder.

A subcommand's file has `HELP` (one line) and `main(argv) -> exit code`. Adding a file adds the subcommand.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path


def found(room: str) -> dict[str, str]:
    """Name -> help line of the subcommands of a room (a package name). Reads the files, imports none of them."""
    package = importlib.import_module(room)
    commands: dict[str, str] = {}
    for folder in package.__path__:
        for file in sorted(Path(folder).glob("*.py")):
            text = _help(file)
            if text is not None and not file.name.startswith("_"):
                commands[file.stem.replace("_", "-")] = text
    return commands


def _help(file: Path) -> str | None:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "HELP" for t in node.targets):
            return str(ast.literal_eval(node.value))
    return None


def run(room: str, argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; without one (or with --help) list them. Returns the exit code: 2 for an unknown name, 130
    interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = found(room)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: python -m {room} SUBCOMMAND …\n")
        for name, text in commands.items():
            print(f"  {name:16} {text}")
        return 0 if arguments else 2
    if arguments[0] not in commands:
        print(f"{room}: unknown subcommand {arguments[0]!r}; known: {', '.join(commands) or 'none'}", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(f"{room}.{arguments[0].replace('-', '_')}")
        return int(module.main(arguments[1:]))
    except KeyboardInterrupt:  # before or after the time in which a subcommand handles it by itself
        print(f"{room}: interrupted", file=sys.stderr)
        return 130
