"""What a run measures: the steps, as data that goes to every rank."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROW = 6144  # bytes of one MiniMax hidden row, 3072 x 16 bit
KIB, MIB = 1 << 10, 1 << 20

# (bytes, why). The list of sizes at which collective libraries change kernel, plus what one decode step sends.
SIZES: tuple[tuple[int, str], ...] = (
    (4, "one float: it has crashed a library"),
    (8, "the QK variance of one token, two floats"),
    (4096 - 4, "below the low-latency threshold"),
    (4096, "at the low-latency threshold"),
    (4096 + 4, "above the low-latency threshold"),
    *((ROW * m, f"hidden rows, M = {m}") for m in (1, 2, 4, 8, 16)),
    (40028, "10007 floats, a prime: no world size but itself divides it"),
    (512 * KIB - 4, "below the small threshold"),
    (512 * KIB, "at the small threshold"),
    (512 * KIB + 4, "above the small threshold"),
    (16 * MIB - 4, "below the medium threshold"),
    (16 * MIB, "at the medium threshold"),
    (16 * MIB + 4, "above the medium threshold"),
    (ROW * 20480, "hidden rows, M = 20480: a prefill"),
    (128 * MIB, "the largest"),
)
FORMS = ("in_place", "clone")
# One decode step of MiniMax-M2 under tensor parallelism: 1 embedding, 62 attention and 62 MoE outputs of one row, and
# 62 QK variances of two floats.
PER_TOKEN: tuple[tuple[int, int], ...] = ((ROW, 1 + 62 + 62), (8, 62))
CALLS_PER_TOKEN = sum(count for _, count in PER_TOKEN)

# largest bytes -> timed rounds, by what the ranks compute on: the whole run has to end in a minute on two CPU cores
_ROUNDS = {
    "cpu": ((64 * KIB, 100), (1 * MIB, 30), (32 * MIB, 5), (1 << 62, 3)),
    "device": ((64 * KIB, 200), (1 * MIB, 100), (32 * MIB, 30), (1 << 62, 10)),
}
# On a device a round is this many calls back to back with one synchronisation; on the CPU every call waits anyway.
_CALLS = {"cpu": ((1 << 62, 1),), "device": ((1 * MIB, 20), (1 << 62, 1))}


@dataclass(frozen=True)
class Step:
    """One size in one form. A time is that of a round divided by `calls`."""

    bytes: int
    dtype: str
    form: str
    rounds: int
    calls: int

    @property
    def name(self) -> str:
        return f"{self.bytes} B {self.form}"


@dataclass(frozen=True)
class Plan:
    """A run: everything a rank must know but its number."""

    backend: str  # xccl | ccl | nccl | gloo | oneccl
    kind: str  # xpu | cuda | cpu
    world: int
    steps: tuple[Step, ...]
    timeout_s: float
    address: str  # tcp://…, file://… or env:// (torchrun)
    graphs: bool = True
    inject: str = ""  # see faults.py
    start_timeout_s: float = 60.0  # the same while ranks load their libraries

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(path: Path) -> Plan:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Plan(**{**data, "steps": tuple(Step(**step) for step in data["steps"])})


def steps(
    kind: str, *, sizes: Sequence[int] | None = None, dtype: str = "bfloat16", max_bytes: int = 1 << 62,
    forms: Sequence[str] = FORMS,
) -> tuple[Step, ...]:  # fmt: skip
    """Every size in every form, small before large. Raises ValueError for a size that no element type divides."""
    speed = "cpu" if kind == "cpu" else "device"
    found = []
    for size in sizes or [size for size, _ in SIZES]:
        if size < 2 or size % 2:
            raise ValueError(f"--sizes: got {size} bytes, wanted a multiple of 2")
        if size <= max_bytes:
            chosen = _dtype(size, dtype)
            rounds, calls = _at(_ROUNDS[speed], size), _at(_CALLS[speed], size)
            found += [Step(size, chosen, form, rounds, calls) for form in forms]
    if not found:
        raise ValueError(f"--max-bytes: got {max_bytes}, which leaves out every size; wanted the smallest at least")
    return tuple(found)


def _dtype(size: int, dtype: str) -> str:
    """The dtype of a size: the sums of squares and the odd float count are float32, hidden rows 16 bit."""
    if size in (4, 8, 40028):
        return "float32"
    return "bfloat16" if dtype == "float32" and size % 4 else dtype


def _at(table: Sequence[tuple[int, int]], size: int) -> int:
    return next(value for largest, value in table if size <= largest)
