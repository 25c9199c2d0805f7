"""`python -m xpu_moe.esimd driver`: Intel's current driver, fetched, and our launches on a card that is not there."""

from __future__ import annotations

import collections
import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

from xpu_moe import cache, needs, streams
from xpu_moe.env import read
from xpu_moe.esimd.nullcard import card, packages
from xpu_moe.esimd.runtime import standalone
from xpu_moe.esimd.runtime.libsycl import RELEASES
from xpu_moe.toolenv import ToolEnvironmentError

HELP = "Intel's current driver and compiler, fetched (Debian), and our launches through it on a card that is not there"
TIMEOUT_S = 600.0
_CODES = (
    "Exit codes: 0 all was compiled and submitted; 1 something was refused; 2 a bad argument, no way to the driver, or "
    "a cache folder that cannot be used; 74 and 141 the answer could not be written."
)
PROGRESS = "driver: "  # what the child's lines of progress begin with
NOT_SHOWN = "not shown: what the kernels compute, and how fast: no command buffer reaches a card"


class Refused(RuntimeError):
    """The driver, or a layer above it, refused something; the message is its own."""


def check(driver: packages.Driver, which: card.Card, libsycl: int, *, validated: bool = True) -> dict[str, Any]:
    """What nullcard/child.py found on a card that is not there. `validated`: with the loader's checks of parameters.

    Raises Refused, packages.Unavailable, ToolEnvironmentError.
    """
    libraries = standalone.environment(libsycl) / "lib"
    environ = card.environment(driver, which, read.snapshot())
    if validated:
        environ |= {"ZE_ENABLE_VALIDATION_LAYER": "1", "ZE_ENABLE_PARAMETER_VALIDATION": "1"}
    command = card.python(driver, ["-m", "xpu_moe.esimd.nullcard.child", str(libraries)], [libraries])
    said: collections.deque[str] = collections.deque(maxlen=12)
    with tempfile.TemporaryFile("w+") as answer:
        child = subprocess.Popen(command, env=environ, stdout=answer, stderr=subprocess.PIPE, text=True)
        timer = threading.Timer(TIMEOUT_S, child.kill)
        timer.start()
        try:
            for line in child.stderr or ():
                said.append(line.rstrip())
                if line.startswith(PROGRESS):
                    streams.warn(line.rstrip())
            code = child.wait()
        finally:
            timer.cancel()
            child.kill()
            child.wait()
        if code:
            raise Refused(f"exit {code} (killed after {TIMEOUT_S:g} s, if -9): " + "\n".join(said))
        answer.seek(0)
        return json.load(answer)


def collect(name: str, libsycl: int, again: bool) -> dict[str, Any]:
    """The driver's versions and what `check` found, as one JSON-able object."""
    driver, which = packages.fetch(again=again), card.CARDS[name]
    streams.warn("driver: compiling every module and calling every operator (half a minute)")
    return {
        "ok": True, "driver": driver.version, "compiler": driver.compiler, "packages": driver.versions,
        "card": {"name": name, **vars(which)}, **check(driver, which, libsycl), "not_shown": NOT_SHOWN,
    }  # fmt: skip


def shown(answer: dict[str, Any]) -> list[str]:
    """The answer in lines for reading."""
    sizes = " x ".join(map(str, answer["card"]["sizes"]))
    lines = [
        f"Intel's driver {answer['driver']}, compiler {answer['compiler']}, {answer['libsycl']}, Level Zero",
        f"a {answer['card']['name'].upper()} that is not there: {answer['device']['name']}, {sizes} vector engines, "
        f"{answer['card']['memory_gib']} GiB",
        "",
        f"{'module':<28}{'compiled in ms':>16}",
    ]
    for room, found in answer["rooms"].items():
        lines += [f"{room + ' ' + name:<28}{ms:>16.0f}" for name, ms in found["modules_ms"].items()]
    counts = ", ".join(f"{len(found['submitted'])} of {room}" for room, found in answer["rooms"].items())
    layer = answer["layer"]
    return [
        *lines, "", f"calls submitted and waited for, parameters validated: {counts}",
        f"host time of a moe_u4 layer at M 1: {layer['own_us']:.1f} us our own, {layer['submit_us']:.1f} us with SYCL "
        f"and the driver's encoding; recorded in a graph {layer['replay_us']:.1f} us a replay",
        answer["not_shown"],
    ]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Exit 0: all was compiled and submitted. 1: something was refused. 2: bad arguments, the driver cannot be had
    here, or the cache folder cannot be used. 74, 141: `streams.emit`."""
    parser = streams.Parser(prog="python -m xpu_moe.esimd driver", description=HELP, epilog=_CODES)
    parser.add_argument(
        "--card", choices=tuple(card.CARDS), default="b70", help="what the driver plans for (default: b70)"
    )
    parser.add_argument(
        "--libsycl",
        type=int,
        choices=tuple(RELEASES),
        default=max(RELEASES),
        help="major version (default: the newest)",
    )
    parser.add_argument("--again", action="store_true", help="ask the archive for a newer one although one is here")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(argv)
    if lacking := needs.missing("torch"):
        return streams.refuse("driver", lacking, options.json)
    try:
        answer = collect(options.card, options.libsycl, options.again)
    except (packages.Unavailable, cache.UnsafeCache) as error:
        return streams.refuse("driver", str(error), options.json, packages.Unavailable.exit_code)
    except (Refused, ToolEnvironmentError) as error:
        return streams.refuse("driver", str(error), options.json, 1)
    return streams.emit("driver", json.dumps(answer) if options.json else "\n".join(shown(answer)))
