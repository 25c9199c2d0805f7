"""Log files of any size and encoding, as lines. Constant memory; chunks without a telling word are passed over."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from xpu_moe.doctor.logs import Explainer, Explanation
from xpu_moe.doctor.messages import MESSAGES
from xpu_moe.doctor.phases import keys_after
from xpu_moe.doctor.traces import STOPPED

CHUNK = 1 << 20
_HOLE = bytes(CHUNK)
_LONGEST = 4000  # of a longer line its beginning is read, and what stands round the words of the table
_WINDOWS = 8
_KEYS = tuple(sorted({key for message in MESSAGES for key in message.keys}, key=len, reverse=True))
_WORDS = tuple(
    sorted(
        {key.encode() for message in MESSAGES for key in message.keys}
        | {b"changed to be", b"GuC firmware", b"rror", b"RROR", b"xception", b"XCEPTION", b"ailed", b"fatal", b"annot"}
        | {b"Traceback", STOPPED.encode()},
        key=len,
    )
)
_GZIP = b"\x1f\x8b"
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class NotALog(ValueError):
    """The file is no text."""


def explain_file(path: Path, progress: Callable[[int, int], None] | None = None) -> Explanation:
    """What the log in `path` means; `-` is standard input. `progress(bytes read, size)` is called for each MiB.

    A pipe will do (its size counts as 0): it is read once, from front to back. Raises OSError when the file cannot be
    read, NotALog when it is no text, or a device (/dev/kmsg waits for the next message for ever).
    """
    explainer = Explainer()
    size = 0 if str(path) == "-" else _size(path)
    with _opened(path) as file:
        size = 0 if isinstance(getattr(file, "raw", None), gzip.GzipFile) else size  # not that of the text
        head = file.read(4096)
        encoding = _encoding(head)
        done = 0
        for chunk in _chunks(file, head, encoding):
            done += len(chunk)
            if progress:
                progress(done, size)
            _take(explainer, chunk, encoding)
    return explainer.result()


def _size(path: Path) -> int:
    found = path.stat()
    if stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
        raise NotALog("a device, which need not have an end")
    return found.st_size


def _opened(path: Path) -> BinaryIO:
    file: BinaryIO = os.fdopen(os.dup(0), "rb") if str(path) == "-" else path.open("rb")
    head = file.read(len(_GZIP))
    if file.seekable():
        file.seek(-len(head), io.SEEK_CUR)
    else:
        file = io.BufferedReader(_PutBack(head, file))
    if head != _GZIP:
        return file
    return io.BufferedReader(gzip.GzipFile(fileobj=file))  # type: ignore[arg-type, type-var]


class _PutBack(io.RawIOBase):
    """A pipe whose first bytes were read already: it cannot be wound back."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._rest.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        data = self._head or self._rest.read1(len(buffer))  # type: ignore[attr-defined]
        self._head = data[len(buffer) :] if self._head else b""
        data = data[: len(buffer)]
        buffer[: len(data)] = data
        return len(data)


def _encoding(head: bytes) -> str:
    for bom, name in _BOMS:
        if head.startswith(bom):
            return name
    if not head:
        return "utf-8"
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if odd > len(head) // 4 and even < len(head) // 16:
        return "utf-16-le"
    if even > len(head) // 4 and odd < len(head) // 16:
        return "utf-16-be"
    # zeros are holes (a log that was truncated while it was written), other control characters no text
    controls = sum(0 < byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in head)
    if controls > len(head) // 4:
        raise NotALog("no text: more than a quarter of its first bytes are control characters")
    return "utf-8"


def _chunks(file: BinaryIO, head: bytes, encoding: str) -> Iterator[bytes]:
    """Pieces that end at a line end (or at CHUNK bytes where a line is longer)."""
    newline = "\n".encode(encoding)
    rest = head
    while True:
        block = file.read(CHUNK)
        if not block:
            if rest:
                yield rest
            return
        if block == _HOLE:  # a log truncated while it was written has gigabytes of zeros
            if rest:
                yield rest
            rest = b""
            yield _HOLE
            continue
        rest += block
        end = rest.rfind(newline)
        while encoding.startswith("utf-16") and end % 2 and end > 0:
            end = rest.rfind(newline, 0, end + len(newline) - 1)
        if end < 0 and len(rest) < 2 * CHUNK:
            continue
        cut = end + len(newline) if end >= 0 else len(rest) // 2 * 2
        yield rest[:cut]
        rest = rest[cut:]


def _take(explainer: Explainer, chunk: bytes, encoding: str) -> None:
    if encoding != "utf-8":
        for line in chunk.decode(encoding, "replace").lstrip("\ufeff").splitlines():
            _feed(explainer, line)
        return
    if chunk is _HOLE or not chunk.strip(b"\0"):
        return
    words = (*_WORDS, *(key.encode() for key in keys_after(explainer.phase)))
    if not explainer.in_traceback and not any(word in chunk for word in words):
        explainer.lines += chunk.count(b"\n")
        return
    for raw in chunk.splitlines():
        _feed(explainer, raw.decode("utf-8", "replace"))


def _feed(explainer: Explainer, line: str) -> None:
    explainer.feed(line[:_LONGEST])
    if len(line) <= _LONGEST:
        return
    places = [at for key in _KEYS if (at := line.find(key, _LONGEST - 200)) >= 0]
    for at in sorted(places)[:_WINDOWS]:
        explainer.feed(line[max(0, at - 500) : at + 1500])
        explainer.lines -= 1
