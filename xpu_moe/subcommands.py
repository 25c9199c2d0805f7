"""`python -m xpu_moe.<room> <subcommand>`: one file a subcommand, found in the room's folder.

A subcommand's file has `HELP` (one line) and `main(argv) -> exit code`. Adding a file adds the subcommand.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from xpu_moe import streams


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
    """Run a subcommand; without one (or with --help) list them. Returns the exit code: 2 for none or an unknown name,
    and for a cache folder that cannot be used, where a subcommand does not say so itself; 130 interrupted, 74 and 141
    an answer that could not be written."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        streams.prepare()
        return _run(room, arguments)
    except KeyboardInterrupt:  # before or after the time in which a subcommand handles it by itself
        streams.warn(f"{room}: interrupted")
        return streams.INTERRUPTED
    except RuntimeError as error:
        from xpu_moe.cache import UnsafeCache

        if not isinstance(error, UnsafeCache):
            raise
        return streams.refuse(f"{room} {arguments[0]}", str(error), streams.asked_for_json(arguments))


def _run(room: str, arguments: list[str]) -> int:
    commands = found(room)
    if not arguments or arguments[0] in ("-h", "--help"):
        rows = [f"  {name:16} {text}" for name, text in commands.items()]
        lost = streams.emit(room, "\n".join((f"usage: python -m {room} SUBCOMMAND …\n", *rows)))
        return lost or (0 if arguments else streams.BAD_ARGUMENT)
    if arguments[0] not in commands:
        what = "no subcommand" if arguments[0] == "--json" else f"unknown subcommand {arguments[0]!r}"
        wrong = f"{what}; known: {', '.join(commands) or 'none'}"
        return streams.refuse(room, wrong, streams.asked_for_json(arguments))
    module = importlib.import_module(f"{room}.{arguments[0].replace('-', '_')}")
    return int(module.main(arguments[1:]))
