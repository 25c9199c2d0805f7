"""What we know of one environment variable: a row of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["bool", "int", "float", "str", "enum", "path", "bytes", "list"]
Owner = Literal["xpu_moe", "vllm", "oneccl", "level-zero", "sycl", "nccl", "torch", "libfabric", "system", "script"]


@dataclass(frozen=True)
class Variable:
    """One environment variable that we read, set or judge.

    `profiles` maps a profile name to the value which that profile exports; a profile that is not named leaves the
    variable alone. `honoured` names, per component, the versions that read it, in packaging's specifier syntax
    (`{"vllm": "<0.31"}`); empty = every version known to us. `conflicts` are names (`NAME`) or settings (`NAME=VALUE`)
    that exclude it.
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
    conflicts: tuple[str, ...] = ()
    secret: bool = False
