"""Sizes as vLLM reads them: 256M is binary, 256m decimal."""

from __future__ import annotations

import re

GIB = 1 << 30
MIB = 1 << 20
_UNITS = ((GIB, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def size(text: str) -> int:
    """`256M` -> 268435456, `4g` -> 4000000000, `4.5g` -> 4500000000. Raises ValueError, as vLLM does for `4.5G`."""
    found = re.fullmatch(r"(\d+)(\.\d+)?([KMGTkmgt]?)", text.strip())
    if found is None or len(text) > 24:
        raise ValueError(f"size: got {text!r}, wanted bytes, or a number with K M G T (binary) or k m g t (decimal)")
    whole, fraction, suffix = found.groups()
    if fraction and suffix not in _DECIMAL:
        raise ValueError(f"size: got {text!r}, decimals go with k m g t only")
    if fraction:
        return int(float(whole + fraction) * _DECIMAL[suffix])
    return int(whole) * {**_BINARY, **_DECIMAL, "": 1}[suffix]


def gib(count: int | float) -> str:
    """Bytes for people: `1.02 GiB`; of what is too small for that `3.25 MiB`, `512 KiB`."""
    unit, name = next(((unit, name) for unit, name in _UNITS if abs(count) >= unit / 10), (1, "bytes"))
    return f"{count / unit:.2f} {name}" if unit >= MIB else f"{count / unit:.0f} {name}"
