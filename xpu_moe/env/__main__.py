"""`python -m xpu_moe.env`: what a profile exports, and why.

    eval "$(python -m xpu_moe.env --profile no-p2p --device xpu --cards 0,1,2,3)"
    python -m xpu_moe.env --explain CCL_TOPO_P2P_ACCESS
    python -m xpu_moe.env --profile graph --diff

Findings about your own values go to stderr. Exit code: 0, 1 where one of them is an error, 2 for a bad argument, 74
where the answer could not be written, 141 where its reader has gone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from xpu_moe import streams, verdict
from xpu_moe.env import library, read, show, versions
from xpu_moe.env.cards import indices
from xpu_moe.env.judge import judge
from xpu_moe.env.profiles import BadProfile, Situation, known, left_alone, render

_NAME = "xpu_moe.env"


def main(argv: Sequence[str] | None = None) -> int:
    streams.prepare()
    arguments = _parser().parse_args(argv)
    environ = read.snapshot()
    if arguments.document and arguments.json:
        return streams.refuse(_NAME, "--document and --json exclude each other: the page is text", as_json=True)
    if arguments.document:
        return streams.emit(_NAME, show.document(), end="")
    try:
        assumed = _pairs(arguments.assume)
        planned = None if arguments.cards is None else indices(arguments.cards)
        in_use = {**versions.installed(), **assumed}
        device = arguments.device or _device()
        situation = here(device, planned, tuple(filter(None, arguments.card_names.split(","))))
        if "vllm" in assumed:
            situation = replace(situation, vllm_names=None)  # what is installed is not what is asked about
        if "oneccl" in assumed:
            situation = replace(situation, library=None)
        if arguments.explain:
            text = show.explain(arguments.explain, environ, in_use, situation)
            data = {**show.row(arguments.explain), "text": text}
            return streams.emit(_NAME, json.dumps(data, indent=1) if arguments.json else text)
        settings = render(arguments.profile, device, in_use, environ, situation)
        left = left_alone(arguments.profile, device, in_use, situation)
    except (BadProfile, KeyError, ValueError) as error:
        return streams.refuse(_NAME, str(error.args[0] if error.args else error), arguments.json)
    if planned is not None and len(planned) == 1 and planned[0] > 1:
        count = planned[0]
        all_ = ",".join(map(str, range(min(count, 16))))
        streams.warn(f"{_NAME}: --cards {count} is the one card of that number; {count} cards are --cards {all_}")
    findings = judge({**environ, **{s.name: s.value for s in settings}}, device, in_use, situation, arguments.profile)
    if arguments.json:
        text = json.dumps(_json(arguments.profile, device, in_use, settings, left, findings), indent=1)
    elif arguments.diff:
        text = show.difference(settings, environ)
    else:
        text = show.shell(settings, left)
    lost = streams.emit(_NAME, text)
    if findings and not arguments.json:
        streams.warn(show.complaints(findings))
    return lost or int(any(finding.level == "error" for finding in findings))


def here(device: str, cards: tuple[int, ...] | None = None, card_names: tuple[str, ...] = ()) -> Situation:
    """The situation of this machine: the verdict of the p2p probe, the oneCCL library, the vLLM installed."""
    return Situation(
        cards=cards,
        card_names=card_names,
        peer_access=verdict.peer_access(device, cards),
        library=library.oneccl(),
        vllm_names=library.vllm_names(),
    )


def _json(profile: str, device: str, in_use: dict[str, str], settings: Any, left: Any, findings: Any) -> dict[str, Any]:
    def masked(item: Any) -> dict[str, Any]:
        row = show.registry().get(item.name)
        data = asdict(item)
        return {**data, "value": "***"} if row is not None and row.secret and "value" in data else data

    return {
        "schema": 1,
        "profile": profile,
        "device": device,
        "versions": in_use,
        "settings": [masked(item) for item in settings],
        "left_alone": [asdict(item) for item in left],
        "findings": [masked(item) for item in findings],
    }


def _device() -> str:
    from xpu_moe.device import current

    return current().kind


def _pairs(items: Sequence[str]) -> dict[str, str]:
    found = {}
    for item in items:
        component, _, version = item.partition("=")
        if component not in versions.COMPONENTS or not versions.is_version(version):
            known = ", ".join(versions.COMPONENTS)
            raise ValueError(f"--assume: got {item!r}, wanted COMPONENT=VERSION such as vllm=0.30, with one of {known}")
        found[component] = version
    return found


def _parser() -> streams.Parser:
    parser = streams.Parser(prog="python -m xpu_moe.env", description="What a profile exports, and why.")
    parser.add_argument("--profile", default="default", help=known())
    parser.add_argument("--device", choices=("xpu", "cuda", "cpu"), help="default: what is in this machine")
    parser.add_argument("--cards", help="indices of the planned cards, such as 0,1,2,3")
    parser.add_argument("--card-names", default="", help="their names, comma separated, where rules depend on them")
    parser.add_argument("--assume", action="append", default=[], metavar="COMPONENT=VERSION",
                        help="judge for this version instead of the installed one, such as vllm=0.30")  # fmt: skip
    parser.add_argument("--explain", metavar="VAR", help="all that is known of one variable")
    parser.add_argument("--diff", action="store_true", help="compare the profile with the environment")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--document", action="store_true", help="print docs/environment.md")
    return parser


if __name__ == "__main__":
    sys.exit(streams.interruptible(_NAME, main))
