"""Regular expressions that a checkpoint brings along, matched as `re.search` or `re.match` does, and always to an end.

Some patterns need longer than anyone waits: `(a+)+$` doubles its work with every character of a name. Those whose form
bounds the work are matched here, the others in a child, which the kernel ends when it has computed for too long.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import lru_cache

from xpu_moe.formats.quantization import UnsupportedCheckpoint

# Seconds of a core for one pattern on the names of one layer (768 of them; an ordinary pattern takes 0.001)
LIMIT_S = 0.25
_WAIT_S = 60.0  # of the clock: a machine that is busy otherwise
_CHILD = """
import json, re, signal, sys
pattern, names, anchored, limit = json.load(sys.stdin)
compiled = re.compile(pattern)
found = compiled.match if anchored else compiled.search
signal.signal(signal.SIGPROF, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
signal.setitimer(signal.ITIMER_PROF, limit)
print(json.dumps([number for number, name in enumerate(names) if found(name)]))
"""
_TOKEN = re.compile(
    r"\\(?P<escaped>.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<special>\(\?(?!:))|(?P<open>\((?:\?:)?)|(?P<close>\))"
    r"|(?P<bar>\|)|(?P<quantifier>[*+?{])",
    re.DOTALL,
)
# what a tame pattern has at most: enough for `.*layers\.(1|2)\..*experts.*`
_MOST = {"quantifier": 3, "open": 2, "bar": 16}


class EndlessPattern(UnsupportedCheckpoint):
    """A pattern whose matching did not end in time."""


def matching(pattern: str, names: Sequence[str], anchored: bool = False) -> frozenset[str]:
    """Those of `names` in which the pattern is found, anywhere or (`anchored`) from the start. Raises EndlessPattern,
    and UnsupportedCheckpoint for a pattern that is none, or that needs a child where none can be started."""
    compiled = _compiled(pattern)
    return _here(compiled, names, anchored) if is_tame(pattern) else _in_a_child(pattern, tuple(names), anchored)


def is_tame(pattern: str) -> bool:
    """Whether the form alone bounds the work on one name (to about a millisecond): few quantifiers and alternatives,
    none on a group, and no group that refers to another, looks around or sets flags."""
    count = dict.fromkeys(_MOST, 0)
    closed = -1
    for token in _TOKEN.finditer(pattern):
        kind = str(token.lastgroup)
        if kind == "special" or (kind == "escaped" and token["escaped"].isdigit()):
            return False
        if kind == "quantifier" and token.start() == closed:
            return False
        if kind == "close":
            closed = token.end()
        if kind in count:
            count[kind] += 1
    return all(count[kind] <= most for kind, most in _MOST.items())


def _here(compiled: re.Pattern[str], names: Sequence[str], anchored: bool) -> frozenset[str]:
    match = compiled.match if anchored else compiled.search
    found, begun = set(), time.thread_time()
    for number, name in enumerate(names):
        if match(name):
            found.add(name)
        if number % 16 == 0 and time.thread_time() - begun > LIMIT_S:
            raise _endless(compiled.pattern, len(names))
    return frozenset(found)


@lru_cache(maxsize=256)
def _in_a_child(pattern: str, names: tuple[str, ...], anchored: bool) -> frozenset[str]:
    command = [sys.executable or "", "-I", "-S", "-c", _CHILD]
    given = json.dumps([pattern, names, anchored, LIMIT_S])
    try:
        ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_WAIT_S)
    except subprocess.TimeoutExpired:
        raise _endless(pattern, len(names)) from None
    except OSError as error:
        raise _untried(pattern, str(error)) from None
    if ended.returncode == -signal.SIGPROF:
        raise _endless(pattern, len(names))
    if ended.returncode:
        raise _untried(pattern, f"exit code {ended.returncode}: {ended.stderr[-200:].strip()}")
    return frozenset(names[number] for number in json.loads(ended.stdout))


def _endless(pattern: str, count: int) -> EndlessPattern:
    return EndlessPattern(
        f"quantization_config override {_shown(pattern)}: got no end within {LIMIT_S:g} s of matching it against "
        f"{count} names, wanted a pattern that repeats nothing inside of a repetition"
    )


def _untried(pattern: str, why: str) -> UnsupportedCheckpoint:
    return UnsupportedCheckpoint(
        f"quantization_config override {_shown(pattern)}: may never end, and could not be tried in a process of its "
        f"own ({why}); wanted a pattern without repeated groups"
    )


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 100 else f"{pattern[:99]}…")


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise UnsupportedCheckpoint(
            f"quantization_config override {_shown(pattern)}: no regular expression: {error}"
        ) from None
