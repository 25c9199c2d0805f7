"""The watched process: `python -m xpu_moe.probe._p2p.worker KIND CARDS SIZE REHEARSE FAULT EVENTS_FD PARENT STACK`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

from xpu_moe.probe._watch.child import Events, be_watched


def main(argv: list[str]) -> int:
    kind, cards, size, rehearse, fault, fd, parent, stack = argv
    be_watched(int(parent), Path(stack))
    events = Events(int(fd))
    events.emit("phase", phase="start", step="")
    from xpu_moe.probe._p2p.fabric import choose
    from xpu_moe.probe._p2p.measure import measure

    chosen = [int(card) for card in cards.split(",")] if cards else None
    try:
        fabric = choose(kind, chosen, int(rehearse), fault)
        events.emit("hello", library={"name": type(fabric).__name__, "version": ""}, dumps=True)
        events.emit("cards", cards=list(fabric.cards))
        pairs = measure(fabric, int(size), lambda step: events.emit("phase", phase="copy", step=step))
        events.emit("pairs", pairs=[asdict(pair) for pair in pairs])
        events.emit("done")
    except Exception as error:
        events.emit("error", kind=type(error).__name__, text=str(error)[:2000])
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)  # a driver in trouble may not come back from its destructors
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
