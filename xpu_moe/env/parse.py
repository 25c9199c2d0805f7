"""What would the library make of this value?

Every library reads its variables by its own rules, and half of the trouble comes from values that a person reads one
way and a parser another: oneCCL's number parser takes `4G` as 4 and `true` as 0 without a word, its boolean parser ends
the process on `true`, vLLM's `bool(int(…))` raises. Sources: oneCCL source (environment parser); vLLM envs.py; PyTorch
c10d getCvarBool; NCCL param.cc (strtoll, base 0); Level Zero loader (getenv_tobool).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from xpu_moe.env import read
from xpu_moe.env.registry import find
from xpu_moe.env.variable import Variable

_LIMIT = 2**63 - 1


@dataclass(frozen=True)
class Reading:
    """How a library reads `given`: it goes on with `taken`, or ends (`fatal`, taken None).

    `says` is one sentence where the value does not mean what it seems to, "" where all is well.
    """

    name: str
    given: str
    taken: str | None
    says: str = ""

    @property
    def fatal(self) -> bool:
        return self.taken is None


def interpret(name: str, value: str) -> Reading:
    """The reading of a variable's value by its library; of an unknown variable the value as it stands."""
    row = find(name)
    if row is None:
        return Reading(name, value, value)
    taken, says = _READERS[reader_of(row)](value, row)
    return Reading(name, value, taken, says)


def reader_of(row: Variable) -> str:
    """Which parser reads a row: its own `reads`, else by owner and kind, else `text`."""
    return row.reads or _BY_OWNER.get((row.owner, row.kind), "text")


def stream_number(text: str) -> int:
    """What a C++ stream reads into a whole number: leading digits, 0 where there are none, clamped to 64 bits."""
    found = re.match(r"\s*([+-]?\d+)", text)
    return max(-_LIMIT - 1, min(_LIMIT, int(found.group(1)))) if found else 0


_Answer = tuple[str | None, str]


def _text(value: str, row: Variable) -> _Answer:
    return value, ""


def _ccl_bool(value: str, row: Variable) -> _Answer:
    if value in ("0", "1"):
        return value, ""
    return None, f"oneCCL stops: unexpected value: {value}, expected values: 0, 1"


def _ccl_number(value: str, row: Variable) -> _Answer:
    number = stream_number(value)
    if re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return str(number), ""
    return str(number), f"oneCCL reads leading digits only: {value!r} becomes {number}; write plain digits"


def _ccl_enum(value: str, row: Variable) -> _Answer:
    if value.lower() in (choice.lower() for choice in row.choices) or not row.choices:
        return value.lower(), ""
    return None, f"oneCCL stops: unexpected value: {value}, expected values: {', '.join(row.choices)}"


_CCL_ALGORITHMS = {
    "topo", "direct", "ring", "ring_rma", "rabenseifner", "nreduce", "double_tree", "recursive_doubling", "2d", "naive",
    "flat", "multi_bcast", "scatter", "scatter_barrier", "tree", "scatter_ring_allgather",
}  # fmt: skip
# known to other collectives only
_NOT_OF = {"CCL_ALLREDUCE": {"naive", "flat", "multi_bcast", "scatter", "scatter_barrier", "tree",
                             "scatter_ring_allgather"}}  # fmt: skip


def _ccl_algorithm(value: str, row: Variable) -> _Answer:
    """`ring` or `ring:0-8192;topo:8193-max`."""
    for part in value.split(";"):
        name = part.split(":")[0].strip().lower()
        if name not in _CCL_ALGORITHMS or name in _NOT_OF.get(row.name, ()):
            return None, f"oneCCL stops: unknown algorithm name {name!r}"
    return value.lower(), ""


def _python_int(value: str, row: Variable) -> _Answer:
    try:
        number = int(value)
    except ValueError:
        return None, f"its reader calls int(): {value!r} raises ValueError; write 0 or 1, or plain digits"
    return str(int(bool(number)) if row.kind == "bool" else number), ""


def _python_true(value: str, row: Variable) -> _Answer:
    if value.strip().lower() in ("1", "true", "0", "false", ""):
        return str(int(value.strip().lower() in ("1", "true"))), ""
    return "0", f"only 1 and true switch it on: {value!r} counts as 0"


def _python_one(value: str, row: Variable) -> _Answer:
    return ("1", "") if value == "1" else ("0", "" if value == "0" else f"only 1 switches it on: {value!r} counts as 0")


def _python_choice(value: str, row: Variable) -> _Answer:
    if not row.choices or value in row.choices:
        return value, ""
    return None, f"vLLM raises ValueError: {value!r} is not one of {', '.join(row.choices)}"


_YES, _NO = ("y", "yes", "1", "t", "true"), ("n", "no", "0", "f", "false")


def _torch_bool(value: str, row: Variable) -> _Answer:
    if value.lower() in _YES + _NO:
        return str(int(value.lower() in _YES)), ""
    return None, f"torch raises: invalid value {value!r} for a boolean; write 0 or 1"


def _strtoll(value: str, row: Variable) -> _Answer:
    found = re.match(r"\s*([+-]?(?:0[xX][0-9a-fA-F]+|\d+))(.*)", value, re.DOTALL)
    if not found:
        return "0", f"NCCL reads a number: {value!r} becomes 0"
    digits, rest = found.groups()
    octal = re.fullmatch(r"[+-]?0\d+", digits)
    if octal:
        digits = re.match(r"[+-]?0[0-7]*", digits).group()  # type: ignore[union-attr]
    number = int(digits, 8 if octal and len(digits.lstrip("+-")) > 1 else 0 if not octal else 10)
    odd = bool(rest.strip()) or bool(octal)
    return str(number), f"NCCL reads {value!r} as {number}" if odd else ""


def _launch_count(value: str, row: Variable) -> _Answer:
    """As `scripts/serve_minimax.sh` takes a number; an empty value counts as none."""
    if not value or (re.fullmatch(r"[0-9]+", value) and int(value)):
        return value and str(int(value)), ""
    return None, "wanted a whole number of at least 1, digits only"


def _ours(value: str, row: Variable) -> _Answer:
    """As `xpu_moe.env.read` takes it."""
    try:
        taken = _OURS[row.kind](row.name, {row.name: value})
    except read.BadValue as error:
        return None, str(error).removeprefix(f"{row.name}={value!r}: ")
    return ("" if taken is None else str(int(taken)) if isinstance(taken, int) else taken), ""


_OURS: dict[str, Callable[..., bool | int | str | None]] = {"bool": read.flag, "int": read.integer, "enum": read.text}


def _atoi(value: str, row: Variable) -> _Answer:
    number = stream_number(value)
    plain = re.fullmatch(r"\s*[+-]?\d+\s*", value) is not None
    return str(number), "" if plain else f"read as a number: {value!r} becomes {number}; write plain digits"


_READERS: dict[str, Callable[[str, Variable], _Answer]] = {
    "text": _text,
    "ccl-bool": _ccl_bool,
    "ccl-number": _ccl_number,
    "ccl-enum": _ccl_enum,
    "ccl-algorithm": _ccl_algorithm,
    "python-int": _python_int,
    "python-true": _python_true,
    "python-one": _python_one,
    "python-choice": _python_choice,
    "torch-bool": _torch_bool,
    "strtoll": _strtoll,
    "atoi": _atoi,
    "launch-count": _launch_count,
    "xpu_moe": _ours,
}
_BY_OWNER: dict[tuple[str, str], str] = {
    ("oneccl", "bool"): "ccl-bool",
    ("oneccl", "int"): "ccl-number",
    ("oneccl", "bytes"): "ccl-number",
    ("oneccl", "enum"): "ccl-enum",
    ("vllm", "bool"): "python-int",
    ("vllm", "int"): "python-int",
    ("vllm", "enum"): "python-choice",
    ("torch", "bool"): "torch-bool",
    ("nccl", "bool"): "strtoll",
    ("nccl", "int"): "strtoll",
    ("level-zero", "bool"): "python-one",
    ("sycl", "bool"): "atoi",
    ("sycl", "int"): "atoi",
    ("ur", "bool"): "atoi",
    ("ur", "int"): "atoi",
    ("neo", "bool"): "atoi",
    ("cuda", "bool"): "atoi",
    ("script", "int"): "launch-count",
    ("script", "enum"): "xpu_moe",
    ("xpu_moe", "bool"): "xpu_moe",
    ("xpu_moe", "int"): "xpu_moe",
}
