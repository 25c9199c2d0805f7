"""Breaking one direction of a rehearsal on purpose: `--inject 'corrupt@1>0'` spoils what card 1 copies to card 0."""

from __future__ import annotations

import re
from dataclasses import dataclass

# stale: the last words are not there yet; kill: the copy ends the process that waits for it
KINDS = ("corrupt", "stale", "unreachable", "hang", "kill")
_FORM = re.compile(r"(\w+)@([0-9]{1,4})>([0-9]{1,4})", re.ASCII)


@dataclass(frozen=True)
class Fault:
    """One fault of the direction `source` to `target`, or none (kind "")."""

    kind: str = ""
    source: int = -1
    target: int = -1

    def breaks(self, kind: str, source: int, target: int) -> bool:
        return (self.kind, self.source, self.target) == (kind, source, target)


def parse(text: str, cards: int) -> Fault:
    """`KIND@S>T` for a rehearsal of so many cards -> Fault; "" -> none. ValueError says what exists."""
    if not text:
        return Fault()
    found = _FORM.fullmatch(text)
    fault = Fault(found[1], int(found[2]), int(found[3])) if found else Fault()
    ends = {fault.source, fault.target}
    if fault.kind not in KINDS or len(ends) < 2 or not ends <= set(range(cards)):
        raise ValueError(
            f"--inject: got {text!r}, wanted KIND@S>T with a kind of {', '.join(KINDS)}, and S and T two cards of "
            f"{', '.join(map(str, range(cards)))}"
        )
    return fault
