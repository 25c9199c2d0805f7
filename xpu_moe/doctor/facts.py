"""Facts, schema version 1, read with patience: anything may be absent, and what has the wrong type counts as absent.

`Facts.of(obj)` is the only door. Behind it the rules meet typed values: clean text, whole numbers, no NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import xpu_moe.doctor.reading as reading
from xpu_moe.doctor.records import Gpu, Library, Model, Os, Plan

__all__ = ["HELD", "SCHEMA", "Facts", "Gpu", "Library", "Model", "Os", "Plan", "numbered"]

SCHEMA = 1
HELD = {"none": "no kernel driver is bound", "vfio-pci": "kept for virtual machines by vfio-pci"}


@dataclass(frozen=True)
class Facts:
    """`present`: all cards; `gpus`: those that the planned runtime numbers (see `numbered`)."""

    os: Os = field(default_factory=Os)
    present: tuple[Gpu, ...] | None = None
    gpus: tuple[Gpu, ...] | None = None
    peers: tuple[tuple[bool | None, ...], ...] | None = None
    libraries: tuple[Library, ...] | None = None
    python_version: str | None = None
    packages: Mapping[str, str] | None = None
    env: Mapping[str, str] | None = None
    model: Model | None = None
    plan: Plan | None = None
    parsers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    probe_p2p: str | None = None
    paths_missing: tuple[str, ...] = ()
    deep: str | None = None
    deep_failed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, raw: Any) -> Facts:
        """Read a facts object (a dict from JSON, or anything: nothing raises)."""
        top = reading.mapping(raw)
        python = reading.mapping(top.get("python"))
        present = reading.gpus(top.get("gpus"))
        found = cls(
            os=reading.os_part(reading.mapping(top.get("os"))),
            present=present,
            gpus=present,
            peers=reading.matrix(top.get("peer_access")),
            libraries=reading.libraries(top.get("libraries")),
            python_version=reading.text(python.get("version")),
            packages=reading.versions(python.get("packages")),
            env=reading.env(top.get("env")),
            model=reading.model(top.get("model")),
            plan=reading.plan(top.get("plan")),
            parsers=reading.parsers(python.get("parsers")),
            paths_missing=reading.names(top.get("paths_missing")),
            deep=reading.text(top.get("deep"), 80),
            deep_failed=reading.texts(top.get("deep_failed")),
            probe_p2p=reading.text(reading.mapping(top.get("probe")).get("p2p")),
        )
        gpus = numbered(present, found.device, found.world or 1) if present else present
        return replace(found, gpus=gpus, peers=_among(found.peers, gpus, len(present or ())))

    # what most rules ask -------------------------------------------------------------------------------------

    def value(self, name: str) -> str | None:
        """An environment value; None where unset or unknown."""
        return self.env.get(name) if self.env else None

    def package(self, *names: str) -> str | None:
        """Version of the first of these packages that is installed."""
        return next((self.packages[name] for name in names if name in self.packages), None) if self.packages else None

    def library(self, base: str) -> Library | None:
        """The first loaded library of that base name, `libccl`."""
        return next((library for library in self.libraries or () if library.base == base), None)

    @property
    def device(self) -> str | None:
        """xpu, cuda or cpu: the plan's, else what torch was built for, else what the cards are."""
        if self.plan and self.plan.device:
            return self.plan.device
        torch = self.package("torch") or ""
        for mark, device in (("+xpu", "xpu"), ("+cu", "cuda"), ("+cpu", "cpu")):
            if mark in torch:
                return device
        kinds = {"cuda" if gpu.runtime == "cuda" else "xpu" for gpu in self.gpus or ()}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def world(self) -> int | None:
        return self.plan.world if self.plan else None

    @property
    def several(self) -> bool:
        """Do several cards work together? By the plan; without one, by the cards that are there."""
        return self.world > 1 if self.world is not None else len(self.gpus or ()) > 1


def numbered(gpus: tuple[Gpu, ...], device: str | None, world: int = 1) -> tuple[Gpu, ...]:
    """The cards that the runtime of the device numbers from 0: none of another vendor, none without a driver of theirs.

    All of them where the device is not known or that leaves none, and those without a driver where it leaves fewer than
    `world`: a rule of its own speaks of each.
    """
    own = [gpu for gpu in gpus if gpu.runtime in (device, None)]
    driven = [gpu for gpu in own if gpu.driver not in HELD]
    if device not in ("xpu", "cuda") or not own:
        return gpus
    return tuple(replace(gpu, position=n) for n, gpu in enumerate(driven if len(driven) >= world else own))


Matrix = tuple[tuple[bool | None, ...], ...]


def _among(peers: Matrix | None, gpus: tuple[Gpu, ...] | None, total: int) -> Matrix | None:
    """The rows and columns of these cards, where a matrix counts all cards of the machine."""
    if peers is None or gpus is None or len(peers) != total or len(gpus) == total:
        return peers
    return tuple(tuple(peers[a.place][b.place] for b in gpus) for a in gpus)
