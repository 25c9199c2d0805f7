"""`python -m xpu_moe`: lists the tools. Exit code 0 with --help, else 2; 74 and 141 as `streams.emit`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from xpu_moe import streams

TOOLS = (
    ("doctor", "what is wrong with this machine, environment or plan"),
    ("launch", "serve (as scripts/serve_minimax.sh, which installs as well); launch explain-log FILE"),
    ("plan", "does the model fit, how many KV tokens, what is the ceiling"),
    ("env", "which environment variables, and why"),
    ("probe", "p2p, allreduce, moe: do the cards reach each other, how fast, is it right"),
    ("bench", "kernels, collectives: against rivals and the floor"),
    ("esimd", "the Battlemage kernels: build, report and more"),
    ("demo", "write a tiny MiniMax-M2 checkpoint"),
)


def main(argv: Sequence[str]) -> int:
    """The list on stdout; what is no --help is refused by name."""
    streams.prepare()
    lines = [f"  python -m xpu_moe.{name:8} {question}" for name, question in TOOLS]
    if not argv or argv[0] in ("-h", "--help"):
        text = "\n".join(("usage: python -m xpu_moe.TOOL … (each has --help and --json)\n", *lines))
        return streams.emit("xpu_moe", text) or (0 if argv else streams.BAD_ARGUMENT)
    names = [name for name, _ in TOOLS]
    hint = f"; wanted python -m xpu_moe.{argv[0]}" if argv[0] in names else f"; the tools are {', '.join(names)}"
    return streams.refuse("xpu_moe", f"got {argv[0]!r}{hint}", streams.asked_for_json(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
