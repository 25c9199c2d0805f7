"""What safetensors' own reader refuses in a file's header, found without reading a byte of a tensor. Needs no torch.

The library names neither the file nor the tensor. Its rules: every tensor has a known dtype, a shape and offsets that
fit both; tensors follow each other without a gap or an overlap and end with the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

MOST_HEADER = 100_000_000  # the library takes no longer one
_LENGTH = 8
_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """`names` of all tensors that a file declares; `wrong`: what is wrong with it, a sentence each."""

    names: frozenset[str]
    wrong: tuple[str, ...]


def examine(file: Path) -> Header | None:
    """The header of a safetensors file; None where it cannot be read as JSON at all (`plan.checkpoint` says why)."""
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            start = handle.read(_LENGTH)
            length = int.from_bytes(start, "little")
            if len(start) < _LENGTH or length > size - _LENGTH or length > 2 * MOST_HEADER:
                return None
            declared = json.loads(handle.read(length))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(declared, dict):
        return None
    said = [f"the header has {length} bytes, safetensors takes {MOST_HEADER}"] if length > MOST_HEADER else []
    names = frozenset(name for name in declared if name != "__metadata__")
    return Header(names, (*said, *_wrong(declared, size - _LENGTH - length)))


def _wrong(declared: Mapping[str, Any], room: int) -> Iterator[str]:
    """Tensors that say something impossible of themselves, else those that do not follow each other."""
    metadata = declared.get("__metadata__")
    if metadata is not None and not _is_metadata(metadata):
        yield "__metadata__: wanted an object of texts"
    entries = {name: entry for name, entry in declared.items() if name != "__metadata__"}
    alone = [f"tensor {name!r}: {says}" for name, entry in entries.items() if (says := _of_one(entry))]
    yield from alone or _together(entries, room)


def _is_metadata(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _of_one(entry: Any) -> str:
    """What is wrong with a tensor's entry for itself; "" where nothing is."""
    if not isinstance(entry, dict):
        return f"got {type(entry).__name__}, wanted an object with dtype, shape and data_offsets"
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    bits = _BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        return f"dtype {str(dtype)[:40]!r} is none that safetensors knows"
    if not _are_sizes(shape):
        return f"shape {str(shape)[:80]}, wanted a list of whole numbers"
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return f"data_offsets {str(offsets)[:80]}, wanted the begin and the end of its bytes"
    if offsets[1] - offsets[0] != -(-math.prod(shape) * bits // 8):
        return f"{offsets[1] - offsets[0]} bytes by its data_offsets, {dtype} of {shape!s:.80} is another size"
    return ""


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 63 for number in value)


def _together(entries: Mapping[str, Any], room: int) -> Iterator[str]:
    """Overlaps and gaps, in the order of the file."""
    last, before = 0, ""
    for begin, end, name in sorted((*entry["data_offsets"], name) for name, entry in entries.items()):
        if begin < last:
            yield f"tensor {name!r}: begins at byte {begin}, within tensor {before!r} that ends at {last}"
        elif begin > last:
            yield f"tensor {name!r}: begins at byte {begin}, the bytes from {last} on belong to no tensor"
        last, before = max(last, end), name
    if last > room:
        yield f"tensor {before!r}: ends {last - room} bytes after the file"
    elif last < room:
        yield f"{room - last} bytes longer than its header says"
