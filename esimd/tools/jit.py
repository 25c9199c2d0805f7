"""A child process: one SYCL source to SPIR-V with libsycl-jit alone (no device, no libsycl, no torch).

usage: jit.py LIBSYCL_JIT SOURCE OUTPUT [compiler flags …]. Writes to OUTPUT the one image with kernels that the source
should give and prints {"images": [{"kernels", "bytes", "esimd"}], "log"} as JSON; exit 1 where the compiler refuses.

`compileSYCL` is a private interface of the library: its structures are declared here as release 2026.1.2 lays them out.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
from pathlib import Path

SPIRV = 2  # BinaryFormat::SPIRV


class File(c.Structure):
    _fields_ = (("path", c.c_char_p), ("contents", c.c_char_p))


class Span(c.Structure):
    _fields_ = (("data", c.c_void_p), ("size", c.c_size_t))


class Binary(c.Structure):
    _fields_ = (("format", c.c_uint32), ("address_bits", c.c_uint64), ("start", c.c_void_p), ("size", c.c_uint64))


class Image(c.Structure):
    _fields_ = (("binary", Binary), ("symbols", Span), ("properties", Span))


class Value(c.Structure):
    _fields_ = (("name", c.c_char_p), ("is_number", c.c_bool), ("number", c.c_uint32), ("bytes", Span))


class PropertySet(c.Structure):
    _fields_ = (("name", c.c_char_p), ("values", Span))


class Result(c.Structure):
    _fields_ = (
        ("code", c.c_int),
        ("images", Span),
        ("options", c.c_char_p),
        ("bitcode", Span),
        ("log", c.c_char_p),
    )


def _items(span: Span, kind: type) -> list:
    return [c.cast(span.data, c.POINTER(kind))[i] for i in range(span.size)]


def _numbers(image: Image) -> dict[str, int]:
    """Every numeric property of an image, whatever set it stands in."""
    values = (v for group in _items(image.properties, PropertySet) for v in _items(group.values, Value))
    return {v.name.decode(): v.number for v in values if v.is_number}


def compile_source(library: str, source: Path, flags: list[str]) -> Result:
    jit = c.CDLL(library)
    jit.compileSYCL.restype = Result
    jit.compileSYCL.argtypes = [File, Span, Span, Span, c.c_bool, c.c_uint32]
    arguments = (c.c_char_p * max(1, len(flags)))(*[flag.encode() for flag in flags])
    headers = (File * 1)()
    return jit.compileSYCL(
        File(source.name.encode(), source.read_bytes()),
        Span(c.addressof(headers), 0),
        Span(c.addressof(arguments), len(flags)),
        Span(None, 0),
        True,
        SPIRV,
    )


def main(argv: list[str]) -> int:
    library, source, output, *flags = argv
    result = compile_source(library, Path(source), flags)
    log = (result.log or b"").decode(errors="replace")
    if result.code != 0:
        print(log, file=sys.stderr)
        return 1
    images = []
    for image in _items(result.images, Image):
        kernels = [name.decode() for name in _items(image.symbols, c.c_char_p)]
        esimd = bool(_numbers(image).get("isEsimdImage"))
        images.append({"kernels": kernels, "bytes": image.binary.size, "esimd": esimd})
        if kernels:
            Path(output).write_bytes(c.string_at(image.binary.start, image.binary.size))
    print(json.dumps({"images": [i for i in images if i["kernels"]], "log": log}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
