"""What we know of one environment variable: a row of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["bool", "int", "float", "str", "enum", "path", "bytes", "list"]
Owner = Literal[
    "xpu_moe", "vllm", "xpu-kernels", "oneccl", "libfabric", "mpi", "level-zero", "sycl", "ur", "neo", "igc", "nccl",
    "cuda", "torch", "torch-ccl", "ray", "ucx", "triton", "openmp", "loader", "system", "script",
]  # fmt: skip
Level = Literal["info", "warn", "error"]


@dataclass(frozen=True)
class Caution:
    """What a value does that its setter may not want. `value` is a pattern: see `xpu_moe.env.pattern`."""

    value: str
    level: Level
    says: str


@dataclass(frozen=True)
class Conflict:
    """This variable at `value` (a pattern) excludes `other`: `NAME` (set at all) or `NAME=PATTERN`."""

    value: str
    other: str
    why: str


@dataclass(frozen=True)
class Need:
    """This variable at `value` (a pattern) does nothing, or fails, unless `other` (`NAME` or `NAME=PATTERN`) holds."""

    value: str
    other: str
    why: str


@dataclass(frozen=True)
class Variable:
    """One environment variable that we read, set or judge.

    `name` may end in `*`: a family of names that share one row. `profiles` maps a profile name (or `device:profile`) to
    the value which that profile exports; a profile that is not named leaves the variable alone. A value may hold
    `{cards}`, `{ordinals}` or `{nic}`, filled in from the plan. `when` maps a profile to the condition
    (`xpu_moe.env.profiles`) without which it does not export the value. `honoured` names, per component, the versions
    that read it, in packaging's specifier syntax (`{"vllm": "<0.31"}`); empty = every version known to us. `only_in`
    names the one build that knows it; `instead` says what to use where it is not honoured. `reads` names the parser of
    its library (see `xpu_moe.env.parse`; "" = by owner and kind).
    """

    name: str
    kind: Kind
    doc: str
    owner: Owner
    default: str | None = None
    choices: tuple[str, ...] = ()
    profiles: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ("xpu", "cuda", "cpu")
    why: str = ""
    source: str = ""
    honoured: Mapping[str, str] = field(default_factory=dict)
    conflicts: tuple[Conflict, ...] = ()
    needs: tuple[Need, ...] = ()
    cautions: tuple[Caution, ...] = ()
    only_in: str = ""
    instead: str = ""
    when: Mapping[str, str] = field(default_factory=dict)
    reads: str = ""
    secret: bool = False
