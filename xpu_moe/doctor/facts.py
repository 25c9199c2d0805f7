"""Facts, schema version 1, read with patience: anything may be absent, and what has the wrong type counts as absent.

`Facts.of(obj)` is the only door. Behind it the rules meet typed values: clean text, whole numbers, no NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xpu_moe.doctor.text import clean, is_name
from xpu_moe.doctor.versions import parsed
from xpu_moe.plan.sizes import size

SCHEMA = 1
_MOST = 1 << 62  # a larger number is no size, count or version of anything
_MANY = 200_000  # tensor names, environment entries


@dataclass(frozen=True)
class Os:
    kernel: str | None = None
    distro: str | None = None
    in_container: bool | None = None
    capabilities: tuple[str, ...] | None = None
    yama_ptrace_scope: int | None = None
    seccomp: bool | None = None
    shm_bytes: int | None = None
    iommu: str | None = None
    dri_by_path: bool | None = None
    dri_access: bool | None = None
    ram_bytes: int | None = None
    swap_bytes: int | None = None


@dataclass(frozen=True)
class Gpu:
    """`link_gts`, `link_width` belong to the bridge above the card. `position` is its place in the facts' list."""

    position: int = 0
    index: int | None = None
    pci: str | None = None
    device_id: str | None = None
    name: str | None = None
    memory_bytes: int | None = None
    bar_bytes: int | None = None
    guc: str | None = None
    link_gts: float | None = None
    link_width: int | None = None
    display_attached: bool | None = None
    root_port: str | None = None
    gemm_exact: bool | None = None

    def about(self, fact: str) -> str:
        return f"gpus[{self.position}].{fact}"


@dataclass(frozen=True)
class Library:
    name: str
    path: str | None = None
    version: str | None = None
    env_names: frozenset[str] | None = None

    @property
    def base(self) -> str:
        """`libccl.so.1.0` -> `libccl`."""
        return self.name.split(".so", 1)[0]

    @property
    def generation(self) -> str:
        """`libsycl.so.8` -> `8`; empty without a number."""
        return self.name.partition(".so.")[2].split(".")[0]


@dataclass(frozen=True)
class Plan:
    """A launch, as far as it is decided. The last block is optional in recorded facts."""

    device: str | None = None
    tp: int | None = None
    pp: int | None = None
    dcp: int | None = None
    dtype: str | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    kv_cache_dtype: str | None = None
    kv_cache_memory_bytes: int | None = None
    attention_backend: str | None = None
    block_size: int | None = None
    speculative_method: str | None = None
    graph: bool | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    enable_expert_parallel: bool | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    profiler: str | None = None
    enforce_eager: bool | None = None

    @property
    def world(self) -> int | None:
        """Cards that work together: tp x pp; None when tp is unknown."""
        return None if self.tp is None else self.tp * (self.pp or 1)


@dataclass(frozen=True)
class Model:
    config: Mapping[str, Any] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)
    tensor_names: frozenset[str] | None = None
    shards_missing: tuple[str, ...] = ()
    index_error: str | None = None
    weights_bytes: int | None = None

    @property
    def model_type(self) -> str:
        return clean(str(self.config.get("model_type") or ""), 60).lower()


@dataclass(frozen=True)
class Facts:
    os: Os = field(default_factory=Os)
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

    @classmethod
    def of(cls, raw: Any) -> Facts:
        """Read a facts object (a dict from JSON, or anything: nothing raises)."""
        top = _dict(raw)
        python = _dict(top.get("python"))
        return cls(
            os=_os(_dict(top.get("os"))),
            gpus=_gpus(top.get("gpus")),
            peers=_matrix(top.get("peer_access")),
            libraries=_libraries(top.get("libraries")),
            python_version=_text(python.get("version")),
            packages=_texts(python.get("packages")),
            env=_env(top.get("env")),
            model=_model(top.get("model")),
            plan=_plan(top.get("plan")),
            parsers=_parsers(python.get("parsers")),
            probe_p2p=_text(_dict(top.get("probe")).get("p2p")),
        )

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
        kinds = {"cuda" if "nvidia" in (gpu.name or "").lower() else "xpu" for gpu in self.gpus or ()}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def world(self) -> int | None:
        return self.plan.world if self.plan else None

    @property
    def several(self) -> bool:
        """Do several cards work together? By the plan; without one, by the cards that are there."""
        return self.world > 1 if self.world is not None else len(self.gpus or ()) > 1


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any, limit: int = 400) -> str | None:
    return clean(value, limit) if isinstance(value, str) else None


def _whole(value: Any, least: int = 0) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and (not math.isfinite(value) or value != int(value)):
        return None
    number = int(value)
    return number if least <= number <= _MOST else None


def _bytes(value: Any) -> int | None:
    """A size as a number, or as vLLM's arguments write it (`256M`)."""
    if isinstance(value, str):
        try:
            return size(value)
        except ValueError:
            return None
    return _whole(value, -_MOST)


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _word(value: Any) -> str | None:
    """A lower-case word of a plan (`auto`, `xpu`); None for nothing."""
    text = _text(value, 80)
    return text.lower() if text else None


def _os(raw: Mapping[str, Any]) -> Os:
    capabilities = raw.get("capabilities")
    names = (
        tuple(c.upper().removeprefix("CAP_") for c in capabilities if isinstance(c, str))
        if isinstance(capabilities, list)
        else None
    )
    iommu = raw.get("iommu")
    if isinstance(iommu, bool):
        iommu = "on" if iommu else "off"
    return Os(
        kernel=_text(raw.get("kernel"), 80),
        distro=_text(raw.get("distro"), 80),
        in_container=_flag(raw.get("in_container")),
        capabilities=names,
        yama_ptrace_scope=_whole(raw.get("yama_ptrace_scope")),
        seccomp=_flag(raw.get("seccomp")),
        shm_bytes=_whole(raw.get("shm_bytes")),
        iommu=_word(iommu),
        dri_by_path=_flag(raw.get("dri_by_path")),
        dri_access=_flag(raw.get("dri_access")),
        ram_bytes=_whole(raw.get("ram_bytes"), 1),
        swap_bytes=_whole(raw.get("swap_bytes")),
    )


def _gpus(raw: Any) -> tuple[Gpu, ...] | None:
    if not isinstance(raw, list):
        return None
    found = []
    for position, entry in enumerate(raw[:1024]):
        card = _dict(entry)
        speed = card.get("link_gts")
        found.append(
            Gpu(
                position=position,
                index=_whole(card.get("index")),
                pci=_text(card.get("pci"), 40),
                device_id=_device_id(card.get("device_id")),
                name=_text(card.get("name"), 120),
                memory_bytes=_whole(card.get("memory_bytes"), 1),
                bar_bytes=_whole(card.get("bar_bytes")),
                guc=_text(card.get("guc"), 40),
                link_gts=_speed(speed),
                link_width=_whole(card.get("link_width"), 1),
                display_attached=_flag(card.get("display_attached")),
                root_port=_text(card.get("root_port"), 40),
                gemm_exact=_flag(card.get("gemm_exact")),
            )
        )
    return tuple(found)


def _speed(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e6 or not math.isfinite(value):
        return None
    return float(value) if value > 0 else None


def _device_id(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 0xFFFF:
        return f"0x{value:04x}"
    text = _word(value)
    return text if text is None or text.startswith("0x") else f"0x{text}"


def _matrix(raw: Any) -> tuple[tuple[bool | None, ...], ...] | None:
    if not isinstance(raw, list) or not raw or len(raw) > 64:
        return None
    rows = [tuple(_reach(cell) for cell in row) for row in raw if isinstance(row, list)]
    return tuple(rows) if len(rows) == len(raw) and all(len(row) == len(rows) for row in rows) else None


def _reach(cell: Any) -> bool | None:
    if isinstance(cell, bool):
        return cell
    return bool(cell) if isinstance(cell, int) and cell in (0, 1) else None


def _libraries(raw: Any) -> tuple[Library, ...] | None:
    if not isinstance(raw, list):
        return None
    found = []
    for entry in raw[:4096]:
        row = _dict(entry)
        name = _text(row.get("name"), 120)
        if not name:
            continue
        names = row.get("env_names")
        known = frozenset(n for n in names[:_MANY] if isinstance(n, str)) if isinstance(names, list) else None
        found.append(Library(name, _text(row.get("path")), _version(row.get("version")), known))
    return tuple(found)


def _version(value: Any) -> str | None:
    text = _text(value, 60)
    return text if parsed(text) is not None else None


def _texts(raw: Any) -> Mapping[str, str] | None:
    if not isinstance(raw, dict):
        return None
    pairs = ((clean(str(k), 80).lower().replace("_", "-"), _version(v)) for k, v in list(raw.items())[:_MANY])
    return {name: version for name, version in pairs if version is not None}


def _env(raw: Any) -> Mapping[str, str] | None:
    if not isinstance(raw, dict):
        return None
    return {
        name: clean(str(value), 2000)
        for name, value in list(raw.items())[:_MANY]
        if isinstance(name, str) and is_name(name) and isinstance(value, (str, int)) and _printable(value)
    }


def _printable(value: Any) -> bool:
    """Is a number small enough to be printed (Python refuses to print very long integers)?"""
    return isinstance(value, str) or abs(value) <= _MOST


def _model(raw: Any) -> Model | None:
    if not isinstance(raw, dict):
        return None
    config = _dict(raw.get("config"))
    names = raw.get("tensor_names")
    missing = raw.get("shards_missing")
    return Model(
        config=config,
        quantization=_dict(raw.get("quantization_config")) or _dict(config.get("quantization_config")),
        tensor_names=frozenset(clean(n, 200) for n in names[:_MANY] if isinstance(n, str))
        if isinstance(names, list) and names
        else None,
        shards_missing=tuple(clean(n, 120) for n in missing[:1000] if isinstance(n, str))
        if isinstance(missing, list)
        else (),
        index_error=_text(raw.get("index_error")),
        weights_bytes=_whole(raw.get("weights_bytes"), 1),
    )


def _plan(raw: Any) -> Plan | None:
    if not isinstance(raw, dict):
        return None
    sizes = raw.get("cudagraph_capture_sizes")
    counted = [n for n in (_whole(s, 1) for s in sizes[:100_000]) if n] if isinstance(sizes, list) else None
    return Plan(
        device=_word(raw.get("device")),
        tp=_whole(raw.get("tp"), 1),
        pp=_whole(raw.get("pp"), 1),
        dcp=_whole(raw.get("dcp"), 1),
        dtype=_word(raw.get("dtype")),
        max_model_len=_whole(raw.get("max_model_len"), 1),
        max_num_batched_tokens=_whole(raw.get("max_num_batched_tokens"), 1),
        max_num_seqs=_whole(raw.get("max_num_seqs"), 1),
        kv_cache_dtype=_word(raw.get("kv_cache_dtype")),
        kv_cache_memory_bytes=_bytes(raw.get("kv_cache_memory_bytes")),
        attention_backend=(_text(raw.get("attention_backend"), 80) or "").upper() or None,
        block_size=_whole(raw.get("block_size"), 1),
        speculative_method=_word(raw.get("speculative_method")),
        graph=_graph(raw.get("graph")),
        cudagraph_capture_sizes=tuple(counted) if counted is not None else None,
        enable_expert_parallel=_flag(raw.get("enable_expert_parallel")),
        tool_call_parser=_text(raw.get("tool_call_parser"), 80) or None,
        reasoning_parser=_text(raw.get("reasoning_parser"), 80) or None,
        enable_chunked_prefill=_flag(raw.get("enable_chunked_prefill")),
        enable_prefix_caching=_flag(raw.get("enable_prefix_caching")),
        profiler=_word(raw.get("profiler")),
        enforce_eager=_flag(raw.get("enforce_eager")),
    )


def _graph(value: Any) -> bool | None:
    """A plan's graph is a switch, or the name of vLLM's mode."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "none", "off", "false", "no", "0")
    return _flag(value)


def _parsers(raw: Any) -> Mapping[str, frozenset[str]]:
    return {
        kind: frozenset(n for n in names if isinstance(n, str))
        for kind, names in _dict(raw).items()
        if kind in ("tool", "reasoning") and isinstance(names, list) and names
    }
