"""`python -m xpu_moe.esimd build-twins`: the SIMT twins' sources to the SPIR-V that the wheel ships."""

from __future__ import annotations

import json
from collections.abc import Sequence

from xpu_moe import streams

HELP = "compile the SIMT twins to SPIR-V (--check: only say whether the committed SPIR-V is stale)"
_CODES = (
    "Exit codes: 0 built, or nothing stale; 1 --check found stale modules, or the compiler refused; 2 a bad argument, "
    "or a cache folder that cannot be used; 74 and 141 the answer could not be written."
)


def main(argv: Sequence[str]) -> int:
    """Exit 0: built, or nothing stale. 1: --check found stale modules, or the compiler refused. 2: bad arguments, or a
    cache folder that cannot be used. 74, 141: `streams.emit`."""
    from xpu_moe.cache import UnsafeCache
    from xpu_moe.esimd.tools import programs
    from xpu_moe.esimd.tools.spirv import CompileError
    from xpu_moe.esimd.twins import build
    from xpu_moe.toolenv import ToolEnvironmentError

    parser = streams.Parser(prog="python -m xpu_moe.esimd build-twins", description=HELP, epilog=_CODES)
    parser.add_argument("--check", action="store_true", help="build nothing, exit 1 where a module is stale")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(argv)
    if options.check:
        stale = build.stale()
        lines = [f"{name}: {reason}" for name, reason in stale.items()] or ["every twin is fresh"]
        text = json.dumps({"stale": stale}) if options.json else "\n".join(lines)
        return streams.emit("build-twins", text) or int(bool(stale))
    try:
        programs.compiler_root()
        made = build.build()
    except UnsafeCache as error:
        return streams.refuse("build-twins", str(error), options.json)
    except (CompileError, ToolEnvironmentError) as error:
        return streams.refuse("build-twins", str(error), options.json, 1)
    text = json.dumps(made) if options.json else f"{len(made['modules'])} modules built in {build.FOLDER}"
    return streams.emit("build-twins", text)
