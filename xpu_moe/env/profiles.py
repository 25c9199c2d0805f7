"""Profiles: from a name, a device, the versions in use and the user's environment to what is to be exported.

The values stand in the rows (`Variable.profiles`); here stand the profiles, the conditions, and the walk over both. A
user's own value is never replaced: it comes back with origin "yours".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xpu_moe.env import library, versions
from xpu_moe.env.registry import registry
from xpu_moe.env.variable import Variable

Origin = Literal["yours", "profile"]
DEVICES = ("xpu", "cuda", "cpu")


@dataclass(frozen=True)
class Profile:
    """One profile: what it builds on, where it makes sense, what it excludes."""

    name: str
    doc: str
    base: str | None
    devices: tuple[str, ...]
    excludes: tuple[tuple[str, str], ...] = ()  # (profile, why)


_OLD_ADAPTER = "stable takes the old Level Zero adapter, which cannot record a graph"
PROFILES: Mapping[str, Profile] = {
    p.name: p
    for p in (
        Profile("default", "serving; peer access as the integrity probe proved it", None, DEVICES),
        Profile("no-p2p", "a pair of cards refuses peer access, or its data came out wrong", "default", DEVICES),
        Profile("stable", "hangs or resets after some time: costs speed", "default", DEVICES,
                (("graph", _OLD_ADAPTER),)),
        Profile("graph", "XPU graphs, once the replay probe (xpu_moe.probe allreduce) has passed", "default", DEVICES,
                (("stable", _OLD_ADAPTER),)),
        Profile("no-multicast", "NVLink multicast cannot bind (MIG, virtual machine, container)", "default",
                ("cuda",)),
        Profile("probe", "a stand-alone collective probe, not the server", None, DEVICES),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Situation:
    """What the plan and the machine say, as far as it is known. None = unknown."""

    cards: Sequence[int] | None = None
    card_names: tuple[str, ...] = ()
    hosts: int = 1
    nic: str | None = None  # wanted with several hosts; one host takes the loopback
    peer_access: bool | None = None  # the p2p probe's verdict for these cards
    library: Path | None = None  # the oneCCL library in use
    vllm_names: frozenset[str] | None = None  # the variables of the vLLM in use
    largest_tensor: int = 0  # bytes

    @property
    def interface(self) -> str | None:
        return self.nic or ("lo" if self.hosts == 1 else None)


@dataclass(frozen=True)
class Setting:
    """One variable of a rendered profile. `value` is what the process is to have, whoever it comes from."""

    name: str
    value: str
    origin: Origin
    why: str
    source: str
    wanted: str  # the profile's value; differs from `value` where the user's is kept


@dataclass(frozen=True)
class Left:
    """A variable that a profile knows and leaves alone, and why."""

    name: str
    why: str


class BadProfile(ValueError):
    """A profile that does not exist, or does not fit the device or another profile."""


def known() -> str:
    """The profiles that exist, as a sentence offers them."""
    joined = ", ".join(name for name in PROFILES if name != "probe")
    return f"one of {joined} (several joined by +), or probe by itself"


def resolve(profile: str, device: str) -> tuple[str, ...]:
    """`no-p2p+graph` -> the names to look values up by, most specific first. Raises BadProfile."""
    if device not in DEVICES:
        raise BadProfile(f"device: got {device!r}, wanted one of {', '.join(DEVICES)}")
    parts = profile.split("+")
    for name in parts:
        if name not in PROFILES:
            raise BadProfile(
                f"profile: got {name!r}, wanted {known()} (launch profiles such as b70-tp4-latency are the launcher's: "
                "scripts/serve_minimax.sh --profile NAME --dry-run shows their variables)"
            )
        if device not in PROFILES[name].devices:
            raise BadProfile(f"profile {name}: for {', '.join(PROFILES[name].devices)}, not for {device}")
        for other, why in PROFILES[name].excludes:
            if other in parts:
                raise BadProfile(f"profiles {name} and {other} exclude each other: {why}")
    if "probe" in parts and len(parts) > 1:
        raise BadProfile("profile probe stands alone: it is not for the server")
    chain = list(parts)
    for name in parts:
        base = PROFILES[name].base
        if base is not None and base not in chain:
            chain.append(base)
    return tuple(chain)


def render(
    profile: str, device: str, in_use: Mapping[str, str], environ: Mapping[str, str],
    situation: Situation = Situation(),
) -> tuple[Setting, ...]:  # fmt: skip
    """What a process under `profile` is to have in its environment, in the registry's order.

    `in_use` maps components to versions (see `versions.installed`), `environ` is the user's environment. Raises
    BadProfile.
    """
    return _walk(profile, device, in_use, environ, situation)[0]


def left_alone(
    profile: str, device: str, in_use: Mapping[str, str], situation: Situation = Situation()
) -> tuple[Left, ...]:  # fmt: skip
    """What `profile` would set and does not, because a condition fails or the versions in use do not honour it."""
    return _walk(profile, device, in_use, {}, situation)[1]


def exports(settings: Sequence[Setting]) -> dict[str, str]:
    """Name -> value of what the profile adds to the user's environment."""
    return {setting.name: setting.value for setting in settings if setting.origin == "profile"}


def not_honoured(row: Variable, in_use: Mapping[str, str], situation: Situation) -> str:
    """Why the versions in use do not read a variable; "" where they do, or where nobody knows."""
    reason = ""
    if row.only_in == "no version":
        reason = "no version reads it"
    elif row.owner == "oneccl" and situation.library is not None and row.name not in _NOT_THE_LIBRARYS:
        if not library.knows(situation.library, row.name):
            reason = f"{situation.library.name} in use does not hold the name"
    elif row.owner == "vllm" and situation.vllm_names is not None and row.name.rstrip("*") == row.name:
        known = row.name in situation.vllm_names
        reason = "" if known else f"the vLLM in use ({in_use.get('vllm', 'version unknown')}) does not know it"
    if not reason:
        for component, wanted in row.honoured.items():
            have = in_use.get(component)
            if have is not None and not versions.satisfies(have, wanted):
                reason = f"{component} {have} does not read it (read by {component} {wanted})"
    return f"{reason}; use {row.instead}" if reason and row.instead else reason


# Read by setvars, not by the library.
_NOT_THE_LIBRARYS = frozenset({"CCL_ROOT", "CCL_CONFIGURATION", "CCL_CONFIGURATION_PATH"})


def _walk(
    profile: str, device: str, in_use: Mapping[str, str], environ: Mapping[str, str], situation: Situation
) -> tuple[tuple[Setting, ...], tuple[Left, ...]]:
    chain = resolve(profile, device)
    settings: list[Setting] = []
    left: list[Left] = []
    for row in registry().values():
        key = next((k for name in chain for k in (f"{device}:{name}", name) if k in row.profiles), None)
        if key is None or device not in row.devices:
            continue
        value, refusal = _filled(row.profiles[key], situation)
        condition = row.when.get(key)
        if not refusal and condition is not None:
            refusal = CONDITIONS[condition](row, in_use, situation)
        refusal = refusal or not_honoured(row, in_use, situation)
        if row.name in environ and (not refusal or condition is not None):
            why = f"yours; the profile {'leaves it alone: ' + refusal if refusal else f'has {value}: {row.why}'}"
            wanted = environ[row.name] if refusal else value
            settings.append(Setting(row.name, environ[row.name], "yours", why, row.source, wanted))
        elif refusal:
            left.append(Left(row.name, refusal))
        else:
            settings.append(Setting(row.name, value, "profile", row.why or row.doc, row.source, value))
    return tuple(settings), tuple(left)


def _filled(value: str, situation: Situation) -> tuple[str, str]:
    """(the value with its placeholders filled in, why it cannot be filled in)."""
    if "{nic}" in value:
        nic = situation.interface
        return (value.replace("{nic}", nic), "") if nic else (value, "several hosts: name the interface")
    if "{cards}" in value or "{ordinals}" in value:
        if situation.cards is None:
            return value, "no cards planned"
        cards = ",".join(map(str, situation.cards))
        ordinals = ",".join(map(str, range(len(situation.cards))))
        return value.replace("{cards}", cards).replace("{ordinals}", ordinals), ""
    return value, ""


_Condition = Callable[[Variable, Mapping[str, str], Situation], str]


def _peer_access_proved(row: Variable, in_use: Mapping[str, str], situation: Situation) -> str:
    if situation.peer_access is None:
        return "no verdict: run `python -m xpu_moe.probe p2p`"
    return "" if situation.peer_access else "the p2p probe found peers that do not work: take profile no-p2p"


def _cards_planned(row: Variable, in_use: Mapping[str, str], situation: Situation) -> str:
    return "" if situation.cards is not None else "no cards planned"


def _library_knows_it(row: Variable, in_use: Mapping[str, str], situation: Situation) -> str:
    """Inert where the library does not know the name, so an unknown library gets it."""
    if situation.library is None or library.knows(situation.library, row.name):
        return ""
    return f"{situation.library.name} does not hold the name"


def _hanging_default(row: Variable, in_use: Mapping[str, str], situation: Situation) -> str:
    have = in_use.get("oneccl", "")
    hangs = bool(have) and versions.satisfies(have, ">=2022.0,<=2022.1")
    return "" if hangs and any("B60" in name for name in situation.card_names) else "not oneCCL 2022.0/2022.1 on B60"


def _large_tensor(row: Variable, in_use: Mapping[str, str], situation: Situation) -> str:
    return "" if situation.largest_tensor > 4 << 30 else "no tensor over 4 GB known"


CONDITIONS: Mapping[str, _Condition] = {
    "peer access proved": _peer_access_proved,
    "cards planned": _cards_planned,
    "library knows it": _library_knows_it,
    "oneCCL 2022.0 or 2022.1 on B60": _hanging_default,
    "a tensor over 4 GB": _large_tensor,
}
