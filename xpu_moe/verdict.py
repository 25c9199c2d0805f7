"""What the probes found, kept in the user's cache: peer access (`probe p2p`) and graph replay (`probe allreduce`).

Keyed by cards, driver, kernel and library, so that a verdict dies with what it was measured on. Written by the probes,
read by `env`, `launch` and `doctor`; needs no torch and looks at /sys and /proc only.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from xpu_moe import cache
from xpu_moe.env import versions

SCHEMA = 1
_VENDORS = {"xpu": "0x8086", "cuda": "0x10de"}
_LIBRARY = {"xpu": "oneccl", "cuda": "nccl"}


@dataclass(frozen=True)
class Ground:
    """What a verdict stands on; a change of any part makes it void."""

    kind: str
    cards: tuple[str, ...]  # PCI address and device id of every card of the vendor
    driver: str
    kernel: str
    library: str

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Pair:
    """One direction between two cards: `reachable` by the driver's report, `intact` by the data, GB/s."""

    source: int
    target: int
    reachable: bool
    intact: bool | None
    gb_per_s: float | None
    says: str = ""


@dataclass(frozen=True)
class Verdict:
    """`ok`: every pair of the tested cards is reachable and every byte arrived. `says` is one sentence."""

    ok: bool
    says: str
    tested: tuple[int, ...]
    pairs: tuple[Pair, ...]
    ground: Ground
    when: str
    schema: int = SCHEMA


@dataclass(frozen=True)
class Replay:
    """`ok`: all-reduces of this many ranks were captured, replayed with changed inputs and right every time."""

    ok: bool
    says: str
    world: int
    ground: Ground
    when: str
    schema: int = SCHEMA


def ground(kind: str, root: Path = Path("/")) -> Ground:
    """The present ground for `xpu` or `cuda` (`root` is where /sys and /proc are looked for)."""
    return Ground(
        kind=kind,
        cards=_cards(root, _VENDORS[kind]),
        driver=_driver(kind, root),
        kernel=platform.release(),
        library=f"{_LIBRARY[kind]} {versions.installed().get(_LIBRARY[kind], 'unknown')}",
    )


def load(kind: str, on: Ground | None = None) -> Verdict | None:
    """The verdict for the present ground; None where there is none (or none that can be read)."""
    here = on or ground(kind)
    try:
        data = _object(_folder() / f"{kind}-{here.key}.json")
        if data.pop("schema") != SCHEMA:
            return None
        found = Verdict(
            pairs=tuple(Pair(**pair) for pair in data.pop("pairs")),
            ground=Ground(**{**(g := data.pop("ground")), "cards": tuple(g["cards"])}),
            tested=tuple(data.pop("tested")),
            **data,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.ground == here and _is_sound(found) else None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises OSError, and ValueError for anything else that it holds."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: got {type(data).__name__}, wanted an object")
    return data


def _is_sound(found: Verdict) -> bool:
    """Has everything that is compared its type? The file may have been edited, or be half of one."""
    numbers = [*found.tested, *(card for pair in found.pairs for card in (pair.source, pair.target))]
    flags = [found.ok, *(flag for pair in found.pairs for flag in (pair.reachable, pair.intact))]
    return all(type(n) is int for n in numbers) and all(type(flag) is bool for flag in flags)


def replay_ground(kind: str) -> Ground:
    """The present ground of a replay verdict: torch does the capturing, so its version counts too."""
    here = ground(kind)
    return replace(here, library=f"{here.library}, torch {versions.installed().get('torch', 'unknown')}")


def save_replay(found: Replay) -> Path:
    """Keep a replay verdict (whole or not at all); returns the file."""
    return _write(_replay_file(found.ground, found.world), asdict(found))


def replay(kind: str, world: int, on: Ground | None = None) -> bool | None:
    """Whether graphs with all-reduces of `world` ranks were proved here; None: nobody has tried."""
    if kind not in _VENDORS:
        return None
    here = on or replay_ground(kind)
    try:
        data = _object(_replay_file(here, world))
        return data["ok"] if data["schema"] == SCHEMA and type(data["ok"]) is bool else None
    except (OSError, ValueError, KeyError, TypeError, cache.UnsafeCache):
        return None


def save(verdict: Verdict) -> Path:
    """Keep a verdict (whole or not at all); returns the file."""
    return _write(_folder() / f"{verdict.ground.kind}-{verdict.ground.key}.json", asdict(verdict))


def _replay_file(on: Ground, world: int) -> Path:
    return _folder() / f"replay-{on.kind}-{world}-{on.key}.json"


def _write(path: Path, data: dict[str, Any]) -> Path:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".verdict-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=1)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    return path


def peer_access(kind: str, cards: Sequence[int] | None = None, on: Ground | None = None) -> bool | None:
    """True: peers are proved for these cards (all tested ones where None); False: found broken; None: no verdict."""
    if kind not in _VENDORS:
        return None
    try:
        verdict = load(kind, on)
    except cache.UnsafeCache:
        return None
    if verdict is None or (cards is not None and not set(cards) <= set(verdict.tested)):
        return None
    wanted = set(itertools.permutations(verdict.tested if cards is None else cards, 2))
    good = {(pair.source, pair.target) for pair in verdict.pairs if pair.reachable and pair.intact}
    return wanted <= good  # a probe that hung or died has no pairs


def _folder() -> Path:
    return cache.folder("verdicts")


def _cards(root: Path, vendor: str) -> tuple[str, ...]:
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _text(device / "vendor") == vendor and _text(device / "class").startswith("0x03"):
            found.append(f"{device.name} {_text(device / 'device')}")
    return tuple(found)


def _driver(kind: str, root: Path) -> str:
    if kind == "cuda":
        return _text(root / "proc/driver/nvidia/version").splitlines()[0] if _has_nvidia(root) else "unknown"
    names = sorted(
        path.resolve().name
        for folder in ("usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/local/lib", "usr/lib")
        for path in (root / folder).glob("libze_intel_gpu.so.1")
    )
    return names[0] if names else "unknown"


def _has_nvidia(root: Path) -> bool:
    return bool(_text(root / "proc/driver/nvidia/version"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
