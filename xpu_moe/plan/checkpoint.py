"""A checkpoint folder without its weights: config.json, the safetensors index, the headers of the shards.

Everything is bounded and checked: a header that claims 100 GB, an index that is no JSON, a shard outside the folder.
"""

from __future__ import annotations

import errno
import json
import math
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

_MOST_JSON = 256 << 20
_HEADER = 8
_AGAIN, _FOLDER = "download it again", "give the folder of a checkpoint"
_PERMISSION = "let this user read it and enter its folder (`ls -ld` shows owner and mode, `chmod` sets it)"
_ADVICE = {errno.EACCES: _PERMISSION, errno.EPERM: _PERMISSION, errno.ENOENT: _FOLDER, errno.ENOTDIR: _FOLDER}
_NUMBERED = re.compile(r"(.*-)(\d{1,6})(-of-(\d{1,6})\.safetensors)")
_ELEMENT_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A file that cannot be read: its name, what is wrong with it, and what to do ("" where only a new copy can help).

    As text it is a sentence without the folder, for records that others read."""

    file: str
    wrong: str
    advice: str = ""
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.says}; {self.advice}" if self.advice else self.says

    @property
    def says(self) -> str:
        """What is wrong, and with which file."""
        return f"{self.file}: {self.wrong}"

    @property
    def located(self) -> str:
        """The sentence for the user of this machine: with the file's whole path."""
        text = str(self.path or self.file)
        return str(replace(self, file=text if text.isprintable() else repr(text)))

    @property
    def remedy(self) -> str:
        """What to do, for a place where the file was not just named."""
        return f"download {self.file} again" if self.advice in ("", _AGAIN) else self.advice


class BadCheckpoint(ValueError):
    """The folder is no checkpoint that can be read; `problem` says what is wrong with which file, and what to do."""

    def __init__(self, file: Path, wrong: str, advice: str = "") -> None:
        self.problem = Problem(file.name, wrong, advice, file)
        super().__init__(str(self.problem))


@dataclass(frozen=True)
class Tensor:
    """A tensor of the index: its shard, and what the shard's header says (None when only the index is there)."""

    shard: str
    bytes: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """`problem` names what is wrong with the index or a shard while config.json is fine. `total` is what the index
    says that all tensors take (metadata.total_size, bytes); None where it says nothing. `quantization_file` is where
    `quantization` stands, "" for the config.json itself."""

    path: Path
    config: Mapping[str, Any]
    quantization: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    shards_missing: tuple[str, ...] = ()
    problem: Problem | None = None
    total: int | None = None
    config_file: str = "config.json"
    quantization_file: str = ""

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of all tensors whose header was read."""
        return sum(tensor.bytes or 0 for tensor in self.tensors.values())


def read(folder: Path) -> Checkpoint:
    """Read config, index and headers. Raises BadCheckpoint when config.json cannot be used."""
    config = _object(folder / "config.json")
    quantization, told_in = config.get("quantization_config"), ""
    if not isinstance(quantization, dict):
        quantization = {}
        for name in ("quantization_config.json", "quantize_config.json"):
            if (folder / name).is_file():
                quantization, told_in = _object(folder / name), name
                break
    return Checkpoint(folder, config, quantization, *_tensors(folder), quantization_file=told_in)


def read_config(file: Path) -> Checkpoint:
    """A config.json alone. Raises BadCheckpoint."""
    config = _object(file)
    quantization = config.get("quantization_config")
    return Checkpoint(
        file.parent, config, quantization if isinstance(quantization, dict) else {}, config_file=file.name
    )


def _object(file: Path) -> dict[str, Any]:
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for ever
            raise BadCheckpoint(file, "not a regular file", _FOLDER)
        if found.st_size > _MOST_JSON:
            raise BadCheckpoint(file, f"{found.st_size} bytes, more than any {file.name} has")
        content = json.loads(file.read_text(encoding="utf-8", errors="strict"))
    except BadCheckpoint:
        raise
    except OSError as error:
        raise unreadable(file, error) from None
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(file, f"no JSON ({str(error)[:80]})", _AGAIN) from None
    if not isinstance(content, dict):
        raise BadCheckpoint(file, f"got {type(content).__name__}, wanted a JSON object")
    return content


def unreadable(file: Path, error: OSError) -> BadCheckpoint:
    """What the system said of a file, and what to do about it."""
    return BadCheckpoint(file, str(error.strerror), _ADVICE.get(error.errno or 0, ""))


def _tensors(folder: Path) -> tuple[dict[str, Tensor], tuple[str, ...], Problem | None, int | None]:
    """A Checkpoint's tensors, shards_missing, problem and total."""
    index = folder / "model.safetensors.index.json"
    listed: dict[str, str] = {}
    total = None
    if index.is_file():
        try:
            content = _object(index)
        except BadCheckpoint as error:
            return {}, (), error.problem, None
        weight_map, total = content.get("weight_map"), _total(content.get("metadata"))
        if not isinstance(weight_map, dict):
            return {}, (), Problem(index.name, "weight_map is no object", _AGAIN, index), None
        if not weight_map:
            return {}, (), Problem(index.name, "weight_map names no tensor", _AGAIN, index), None
        listed = {str(name): str(shard) for name, shard in weight_map.items()}
        shards = sorted(set(listed.values()))
    else:
        shards = _with_the_rest(sorted(file.name for file in folder.glob("*.safetensors")))
    outside = [shard for shard in shards if "/" in shard or "\\" in shard or shard.startswith(".")]
    if outside:
        return {}, (), Problem(index.name, f"shard {outside[0]!r} lies outside the folder", "", index), None
    tensors = {name: Tensor(shard) for name, shard in listed.items()}
    missing, problem = [], None
    for shard in shards:
        file = folder / shard
        if not file.is_file():
            missing.append(shard)
            continue
        try:
            tensors.update({n: t for n, t in header(file).items() if not listed or n in listed})
        except BadCheckpoint as error:
            problem = problem or error.problem
    return tensors, tuple(missing), problem, total


def _total(metadata: Any) -> int | None:
    """Some writers have it as 12345.0."""
    value = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _with_the_rest(names: list[str]) -> list[str]:
    """The shards of a folder without an index, and those that their own names (`-00001-of-00002`) promise."""
    numbered = [found for name in names if (found := _NUMBERED.fullmatch(name))]
    from_zero = {(found[1], found[3]) for found in numbered if int(found[2]) == 0}  # some writers count from 0
    promised = set(names)
    for start, end, count, width in {(f[1], f[3], int(f[4]), len(f[2])) for f in numbered}:
        first = 0 if (start, end) in from_zero else 1
        promised |= {f"{start}{number:0{width}}{end}" for number in range(first, first + count)}
    return sorted(promised)


def header(file: Path) -> dict[str, Tensor]:
    """The tensors that a safetensors file declares. Raises BadCheckpoint for a truncated or absurd one."""
    try:
        size = file.stat().st_size
        with file.open("rb") as handle:
            start = handle.read(_HEADER)
            length = int.from_bytes(start, "little")
            if len(start) < _HEADER or length > size - _HEADER or length > _MOST_JSON:
                raise BadCheckpoint(file, f"truncated ({size} bytes, header says {length})", _AGAIN)
            declared = json.loads(handle.read(length))
    except OSError as error:
        raise unreadable(file, error) from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadCheckpoint):
            raise
        raise BadCheckpoint(file, "header is no JSON", _AGAIN) from None
    if not isinstance(declared, dict):
        raise BadCheckpoint(file, "header is no object", _AGAIN)
    return _declared(file, declared, size - _HEADER - length)


def _place(offsets: Any) -> tuple[int, int]:
    """Where a tensor begins and ends; (0, 0) where the header does not tell."""
    if isinstance(offsets, list) and len(offsets) == 2 and all(type(place) is int for place in offsets):
        return offsets[0], offsets[1]
    return 0, 0


def _declared(file: Path, declared: Mapping[str, Any], room: int) -> dict[str, Tensor]:
    found, last = {}, 0
    for name, entry in declared.items():
        if name == "__metadata__" or not isinstance(entry, dict):
            continue
        dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise BadCheckpoint(file, f"tensor {name!r} has no shape", _AGAIN)
        begin, end = _place(offsets)
        if end > room:
            raise BadCheckpoint(file, f"truncated, tensor {name!r} ends {end - room} bytes after the file")
        last = max(last, end)
        bits = _ELEMENT_BITS.get(str(dtype))
        size = math.prod(shape) * bits // 8 if bits else max(0, end - begin)
        found[name] = Tensor(file.name, size, str(dtype), tuple(shape))
    if last < room and found:  # safetensors refuses the file: "not fully covered"
        raise BadCheckpoint(file, f"{room - last} bytes longer than its header says", _AGAIN)
    return found
