"""What a facts file may hold: the keys, and for each what counts as a value. The rest is left out and said to be.

`reading` takes a wrong type for an absent fact, so that nothing raises; a typing error must not look like health.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import xpu_moe.doctor.reading as reading
from xpu_moe.doctor.text import clean, shown

_MOST_SAID = 50
_MOST_ENTRIES = 1024  # of a list whose entries are looked into


@dataclass(frozen=True)
class Kind:
    """`wanted` in words, and whether a value is one."""

    wanted: str
    fits: Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(_bounded(value))


def _bounded(value: float) -> float:
    """A number that isfinite() takes: very long whole numbers are none of anything."""
    return value if isinstance(value, float) or abs(value) < 1 << 62 else math.inf


def _whole(value: Any) -> bool:
    return _number(value) and value == int(value) and value >= 0


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _values(value: Any) -> bool:
    return isinstance(value, dict) and all(
        text is None or (isinstance(text, str | int) and not isinstance(text, bool)) for text in value.values()
    )


TEXT = Kind("a text", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
WHOLE = Kind("a whole number, 0 or more", _whole)
SIZE = Kind("a whole number above 0", lambda value: _whole(value) and value > 0)
SPEED = Kind("a number above 0", lambda value: _number(value) and 0 < value <= 1e6)
TEXTS = Kind("a list of texts", _texts)
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
LIST = Kind("a list of objects", lambda value: isinstance(value, list))
VALUES = Kind("an object of texts", _values)
SWITCH = Kind("a text, or true or false", lambda value: isinstance(value, str | bool))
ID = Kind(
    "a text as 0xe223, or its number", lambda value: isinstance(value, str) or (_whole(value) and value <= 0xFFFF)
)
MATRIX = Kind("a square of true, false and null", lambda value: value == [] or reading.matrix(value) is not None)
ANY = Kind("anything", lambda value: True)

Part = Mapping[str, Kind]
TOP: Part = {
    "schema": ANY, "os": OBJECT, "gpus": LIST, "peer_access": MATRIX, "libraries": LIST, "python": OBJECT,
    "env": VALUES, "model": OBJECT, "plan": OBJECT, "probe": OBJECT, "paths_missing": TEXTS, "deep": TEXT,
    "deep_failed": VALUES, "unread": TEXTS,
}  # fmt: skip
OS: Part = {
    "kernel": TEXT, "distro": TEXT, "in_container": FLAG, "capabilities": TEXTS, "yama_ptrace_scope": WHOLE,
    "seccomp": FLAG, "shm_bytes": WHOLE, "iommu": SWITCH, "dri_by_path": FLAG, "dri_access": FLAG, "ram_bytes": SIZE,
    "swap_bytes": WHOLE, "compute_runtime": FLAG, "compiler": FLAG,
}  # fmt: skip
GPU: Part = {
    "index": WHOLE, "pci": TEXT, "device_id": ID, "name": TEXT, "memory_bytes": SIZE, "bar_bytes": WHOLE, "guc": TEXT,
    "link_gts": SPEED, "link_width": SIZE, "display_attached": FLAG, "root_port": TEXT, "gemm_exact": FLAG,
    "driver": TEXT,
}  # fmt: skip
LIBRARY: Part = {"name": TEXT, "path": TEXT, "version": TEXT, "env_names": TEXTS}
PYTHON: Part = {"version": TEXT, "packages": VALUES, "parsers": OBJECT}
PROBE: Part = {"p2p": TEXT}
MODEL: Part = {
    "config": OBJECT, "quantization_config": OBJECT, "tensor_names": TEXTS, "shards_missing": TEXTS,
    "index_error": TEXT, "index_advice": TEXT, "unlike_config": OBJECT, "weights_bytes": SIZE, "files": TEXTS,
    "header_error": OBJECT, "tensors_lost": OBJECT, "tokenizer_error": OBJECT, "tokenizer_missing": FLAG,
    "folder": TEXT,
}  # fmt: skip
_OBJECTS = {"os": OS, "python": PYTHON, "probe": PROBE, "model": MODEL}
_LISTS = {"gpus": GPU, "libraries": LIBRARY}


@dataclass(frozen=True)
class Unread:
    """A value at `path` that no rule sees."""

    path: str
    says: str


def unread(raw: Mapping[str, Any]) -> list[Unread]:
    """What is of another type or name than a facts file has it; null counts as absent. `plan` is looked into by
    `seen.unread`."""
    return [found for _, found in zip(range(_MOST_SAID), _all(raw), strict=False)]


def _all(raw: Mapping[str, Any]) -> Iterator[Unread]:
    yield from _part(raw, TOP, "")
    for name, part in _OBJECTS.items():
        yield from _part(reading.mapping(raw.get(name)), part, f"{name}.")
    for name, part in _LISTS.items():
        entries = raw.get(name)
        for place, entry in enumerate(entries[:_MOST_ENTRIES] if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                yield from _part(entry, part, f"{name}[{place}].")
            else:
                yield Unread(f"{name}[{place}]", f"got {told(entry)}, wanted an object")


def _part(values: Mapping[str, Any], part: Part, prefix: str) -> Iterator[Unread]:
    for key, value in values.items():
        path = f"{prefix}{clean(str(key), 60)}"
        kind = part.get(key)
        if kind is None:
            yield Unread(path, f"is no key of facts; known here: {', '.join(part)}")
        elif value is not None and not kind.fits(value):
            yield Unread(path, f"got {told(value)}, wanted {kind.wanted}")


def told(value: Any) -> str:
    """A foreign value in a few words."""
    if isinstance(value, dict):
        return "an object" + ("" if value else " without keys")
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= 1 << 128:
        return f"a number of {value.bit_length()} bits"
    return "null" if value is None else shown(repr(value)[:80])
