"""The contract between the device-neutral half and the device rooms: Case, Support, Backend, and the dispatcher.

A `Case` describes one kind of call. Backends of the case's device kind are asked in the written order of their room;
the first that supports the case serves it, and the reasons of those that did not are kept. A backend never falls back
by itself, and a backend asked for by name that cannot serve is an error with the reason: what runs is always the
`Selection` that was returned. Needs no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import SequenceMatcher
from functools import cache, lru_cache
from typing import Any, Protocol, runtime_checkable

from xpu_moe import streams
from xpu_moe.env import read
from xpu_moe.ops.errors import BadArgument

# The lazy line: device kind -> the rooms that offer backends for it, in the order in which they are asked.
# Kernels of `xpu_moe.triton` are not tied to a vendor, so both accelerators get them after their own; `xpu_moe.comm`
# offers what the collective library of the process group does, for every kind.
ROOMS: Mapping[str, tuple[str, ...]] = {
    "xpu": ("xpu_moe.esimd.ops", "xpu_moe.triton.ops", "xpu_moe.comm.ops"),
    "cuda": ("xpu_moe.cuda.ops", "xpu_moe.triton.ops", "xpu_moe.comm.ops"),
    "cpu": ("xpu_moe.cpu.ops", "xpu_moe.comm.ops"),
}


@dataclass(frozen=True)
class Case:
    """One kind of call, hashable. Field names are the field's standard terms; what an operator has no use for stays
    at its default.

    `tokens` is the largest M of the call, `min_tokens` the smallest that the backend must also serve: a decode
    slot asks (0, limit), a prefill slot (limit + 1, max_num_batched_tokens). `intermediate_size` is per rank.
    `layout` names the order of the weight bytes ("n_major" = canonical, see `xpu_moe.formats`).
    """

    op: str
    device: str  # xpu | cuda | cpu
    architecture: str = ""
    dtype: str = "bfloat16"  # of the activations, torch's name without the prefix
    tokens: int = 1
    min_tokens: int = 0
    hidden_size: int = 0
    intermediate_size: int = 0
    num_experts: int = 0
    top_k: int = 0
    group_size: int = 0
    nibble: str = ""  # u4 | s4
    activation: str = ""  # silu | relu2 | relu2_no_mul
    scheme: str = ""  # int4 | fp8_block | fp8_tensor
    layout: str = "n_major"
    prepared: bool = False
    world_size: int = 1
    weights_dtype: str = "float32"  # of the route (or norm) weights
    preference: str = ""  # "" | latency | throughput: what a table may heed (see `rank`)
    q_size: int = 0  # columns of Q in this rank's packed qkv
    kv_size: int = 0  # columns of K (and of V)
    bytes: int = 0  # of the message, for collectives
    group: str = ""  # the process group's name: peer memory is set up per group

    def describe(self) -> str:
        """The fields that differ from their defaults, for messages."""
        shown = [f.name for f in fields(self) if f.name != "op" and getattr(self, f.name) != f.default]
        return f"{self.op}({', '.join(f'{name}={getattr(self, name)}' for name in shown)})"


_WORDS = {"str": "a string", "int": "an integer", "bool": "True or False"}


def check(case: object) -> None:
    """Raise BadArgument unless `case` is a Case whose fields are of their types. Asked where a case is judged for the
    first time, not where one is made: operators make one a call."""
    if not isinstance(case, Case):
        raise BadArgument(f"case: got {type(case).__name__}, wanted a Case")
    for field in fields(case):
        value = getattr(case, field.name)
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else None
        if (kind or ("str" if isinstance(value, str) else None)) != field.type:
            raise BadArgument(f"case.{field.name}: got {value!r}, wanted {_WORDS[str(field.type)]}")


@dataclass(frozen=True)
class Support:
    """A backend's answer. `reason` is one sentence: why not, or what makes it the right choice."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok


@runtime_checkable
class Backend(Protocol):
    """One way to serve an operator.

    `run` takes the operator's own arguments (tensors first, then keywords, `out` and `workspace` included); it
    allocates nothing when both are given and never synchronises. `prepare` turns canonical weights into the order of
    bytes that `run` reads, in place or an expert at a time, and returns the layout's name and the tensors: the same
    shapes and dtypes as the canonical ones, so that one set of checks serves every layout.

    A backend may have `rank(case) -> int` (0 where it has none): the lowest rank is asked first, equal ranks in written
    order. So a table can move a backend behind the others for some cases without refusing it when it is named.
    It may name the order of bytes that it reads in `layout` ("n_major" where it names none), and have
    `bind(selection, …)` -> a call for one layer with all of this decided, for roads on which microseconds count.
    """

    name: str
    op: str

    def supports(self, case: Case) -> Support: ...

    def prepare(self, weights: Any, case: Case) -> Any: ...

    def workspace(self, case: Case) -> int: ...

    def run(self, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True)
class Selection:
    """Who serves a case and why; `refused` holds (name, reason) of those asked before."""

    case: Case
    backend: Backend
    reason: str
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return self.backend.name

    def line(self) -> str:
        """One line for a log: the case, the backend taken, its reason, who was refused."""
        refused = "".join(f"; not {name}: {reason}" for name, reason in self.refused)
        return f"{self.case.describe()} -> {self.name}: {self.reason}{refused}"


class NoBackend(RuntimeError):
    """No backend serves the case (or the one asked for does not). The message holds every reason."""

    def __init__(self, case: Case, refused: Sequence[tuple[str, str]], asked: str | None = None) -> None:
        self.case, self.refused = case, tuple(refused)
        who = f"backend {asked!r} cannot serve" if asked else "no backend serves"
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused) or _unknown(case)
        super().__init__(f"{who} {case.describe()} ({reasons})")


@cache
def backends(device: str, op: str) -> tuple[Backend, ...]:
    """The backends of one operator on a device kind, in written order."""
    if device not in ROOMS:
        raise BadArgument(f"device: got {device!r}, wanted one of {', '.join(sorted(ROOMS))}")
    return tuple(backend for backend in offered(device) if backend.op == op)


def offered(device: str) -> tuple[Backend, ...]:
    """Every backend of a device kind. Loads that kind's rooms, and no other."""
    found: list[Backend] = []
    for room in ROOMS[device]:
        try:
            module = importlib.import_module(room)
        except ModuleNotFoundError as error:
            if error.name is not None and not room.startswith(error.name):
                raise  # the room is there and something that it needs is not: say so, do not hide it
            continue
        found += module.BACKENDS
    return tuple(found)


def _unknown(case: Case) -> str:
    """Why nobody was asked: which operators the device kind has instead, the most alike first."""
    if case.device not in ROOMS or backends(case.device, case.op):
        return "none is registered"

    def unlike(op: str) -> tuple[float, str]:
        return -SequenceMatcher(None, case.op, op).ratio(), op

    there = sorted({backend.op for backend in offered(case.device)}, key=unlike)
    return f"op: got {case.op!r}, wanted one that {case.device} has: {', '.join(there)}"


def _asked(case: Case, backend: str | None) -> str | None:
    """The name that the case must be served by. XPU_MOE_BACKEND speaks to the operators that have one of that name;
    a name that no operator of the device has stays, to be refused."""
    named = read.text("XPU_MOE_BACKEND") or None
    if backend or named is None:
        return backend
    mine = any(candidate.name == named for candidate in backends(case.device, case.op))
    others = any(candidate.name == named for candidate in offered(case.device))
    return named if mine or not others else None


def in_order(case: Case) -> list[Backend]:
    """The backends of the case's device and operator in the order in which they are asked."""
    return sorted(backends(case.device, case.op), key=lambda b: b.rank(case) if hasattr(b, "rank") else 0)


@lru_cache(maxsize=4096)
def select(case: Case, backend: str | None = None) -> Selection:
    """The backend that serves `case`: the first of the written order, or `backend` by name.

    Raises NoBackend with every reason when nobody does; an explicit name never falls back to another. BadArgument for
    what is no case.
    """
    check(case)
    asked = _asked(case, backend)
    refused: list[tuple[str, str]] = []
    for candidate in in_order(case):
        if asked is not None and candidate.name != asked:
            continue
        support = candidate.supports(case)
        if support.ok:
            selection = Selection(case, candidate, support.reason, tuple(refused))
            if read.flag("XPU_MOE_EXPLAIN"):
                streams.warn(f"xpu_moe: {selection.line()}")
            return selection
        refused.append((candidate.name, support.reason))
    if asked is not None and not refused:
        known = ", ".join(b.name for b in backends(case.device, case.op))
        refused.append((asked, f"unknown for {case.op} on {case.device}; known: {known}" if known else _unknown(case)))
    raise NoBackend(case, refused, asked)


def explain(case: Case) -> str:
    """Every backend's answer to `case`, one a line, the one taken marked with `*`. Never raises for a refusal,
    BadArgument for what is no case."""
    check(case)
    lines, taken = [case.describe()], False
    for candidate in in_order(case):
        support = candidate.supports(case)
        mark = "*" if support.ok and not taken else " "
        taken = taken or support.ok
        lines.append(f" {mark} {candidate.name}: {'yes' if support.ok else 'no'}, {support.reason}")
    if not taken:
        lines.append("   nothing serves it" + ("" if lines[1:] else f" ({_unknown(case)})"))
    return "\n".join(lines)


def with_tokens(case: Case, tokens: int, min_tokens: int = 0) -> Case:
    """The same case for another range of M."""
    return replace(case, tokens=tokens, min_tokens=min_tokens)
