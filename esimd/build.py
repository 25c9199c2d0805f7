"""`python -m xpu_moe.esimd build`: kernel sources to the SPIR-V that the wheel ships."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from xpu_moe import streams
from xpu_moe.esimd.kernels import instances
from xpu_moe.esimd.tools import spirv
from xpu_moe.toolenv import ToolEnvironmentError

HELP = "compile the kernels to SPIR-V (--check: only say whether the committed SPIR-V is stale)"


def main(argv: Sequence[str]) -> int:
    """Exit 0: built, or nothing stale. 1: --check found stale modules, or the compiler refused. 2: bad arguments.
    74, 141: `streams.emit`."""
    parser = streams.Parser(prog="python -m xpu_moe.esimd build", description=HELP)
    parser.add_argument("modules", nargs="*", help="modules to build (default: those that are stale)")
    parser.add_argument("--all", action="store_true", help="build every module")
    parser.add_argument("--check", action="store_true", help="build nothing, exit 1 where a module is stale")
    parser.add_argument(
        "--source", metavar="MODULE", help="print the translation unit of a module (for icpx), build nothing"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(argv)
    asked = [*options.modules, *([options.source] if options.source else [])]
    unknown = [name for name in asked if name not in instances.modules()]
    if unknown:
        parser.error(f"no module {', '.join(unknown)}; known: {', '.join(instances.modules())}")

    if options.source:
        return streams.emit("build", instances.source(instances.modules()[options.source]), end="")
    stale = spirv.stale()
    if options.check:
        answer: dict[str, Any] = {"stale": stale}
        code = int(bool(stale))
    else:
        names = options.modules or list(instances.modules() if options.all else (n for n in stale))
        try:
            answer, code = spirv.build([n for n in names if n in instances.modules()]), 0
        except (spirv.CompileError, ToolEnvironmentError) as error:
            return streams.refuse("build", str(error), options.json, 1)
    if options.json:
        text = json.dumps(answer)
    elif options.check:
        text = "\n".join(f"{name}: {reason}" for name, reason in stale.items()) or "every module is fresh"
    else:
        total = sum(row["bytes"] for row in answer["modules"].values())
        text = f"{len(names)} of {len(answer['modules'])} modules built, {total / 1e6:.2f} MB in {spirv.FOLDER}"
    return streams.emit("build", text) or code
