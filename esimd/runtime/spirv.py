"""What a SPIR-V module says of itself, checked before a driver sees it."""

from __future__ import annotations

import struct

MAGIC = 0x07230203
# Intel's compute drivers of 2022 and later take 1.0 to 1.4; the pinned compiler writes 1.1 to 1.4.
NEWEST = (1, 4)


class SpirvError(ValueError):
    """Bytes that are no SPIR-V, of the wrong byte order, cut short, or of a version that no driver takes."""


def version(module: bytes, name: str = "module") -> tuple[int, int]:
    """(major, minor) of a module's header. Raises SpirvError with what was got and wanted."""
    if len(module) < 20 or len(module) % 4:
        raise SpirvError(f"{name}: got {len(module)} bytes, wanted a SPIR-V module (whole words, at least 5)")
    magic, word = struct.unpack_from("<II", module)
    if magic != MAGIC:
        raise SpirvError(f"{name}: got magic {magic:#010x}, wanted {MAGIC:#010x} (a little-endian SPIR-V module)")
    found = (word >> 16 & 0xFF, word >> 8 & 0xFF)
    if not (1, 0) <= found <= NEWEST:
        raise SpirvError(
            f"{name}: got SPIR-V {found[0]}.{found[1]}, wanted 1.0 to {NEWEST[0]}.{NEWEST[1]}: rebuild it with "
            "`python -m xpu_moe.esimd build`"
        )
    return found


def entry_points(module: bytes, name: str = "module") -> tuple[str, ...]:
    """The names of the module's kernels (OpEntryPoint). Raises SpirvError where the instructions end early."""
    words = memoryview(module).cast("I")
    names, at = [], 5
    while at < len(words):
        length, opcode = words[at] >> 16, words[at] & 0xFFFF
        if length == 0 or at + length > len(words):
            raise SpirvError(f"{name}: got {len(words)} words, wanted more: the instruction at word {at} is cut off")
        if opcode == 15:  # OpEntryPoint: execution model, id, name …
            raw = words[at + 3 : at + length].tobytes()
            names.append(raw.split(b"\0", 1)[0].decode())
        at += length
    return tuple(names)
