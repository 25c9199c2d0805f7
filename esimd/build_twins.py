"""`python -m xpu_moe.esimd build-twins`: the SIMT twins' sources to the SPIR-V that the wheel ships."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

HELP = "compile the SIMT twins to SPIR-V (--check: only say whether the committed SPIR-V is stale)"


def main(argv: Sequence[str]) -> int:
    """Exit 0: built, or nothing stale. 1: --check found stale modules, or the compiler refused."""
    from xpu_moe.esimd.tools.spirv import CompileError
    from xpu_moe.esimd.twins import build
    from xpu_moe.toolenv import ToolEnvironmentError

    parser = argparse.ArgumentParser(prog="python -m xpu_moe.esimd build-twins", description=HELP)
    parser.add_argument("--check", action="store_true", help="build nothing, exit 1 where a module is stale")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(argv)
    if options.check:
        stale = build.stale()
        lines = [f"{name}: {reason}" for name, reason in stale.items()] or ["every twin is fresh"]
        print(json.dumps({"stale": stale}) if options.json else "\n".join(lines))
        return int(bool(stale))
    try:
        made = build.build()
    except (CompileError, ToolEnvironmentError) as error:
        print(f"build-twins: {error}", file=sys.stderr)
        return 1
    print(json.dumps(made) if options.json else f"{len(made['modules'])} modules built in {build.FOLDER}")
    return 0
