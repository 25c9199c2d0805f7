"""From any JSON to the typed parts: what has the wrong type counts as absent, nothing raises."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from xpu_moe.doctor.records import Fault, Gpu, Library, Model, Os, Plan
from xpu_moe.doctor.text import clean, is_name
from xpu_moe.doctor.versions import parsed
from xpu_moe.plan.sizes import size

_MOST = 1 << 62  # a larger number is no size, count or version of anything
_PLAIN_NAME = re.compile(r"(?!.*(?:hf_|gh[pousr]_|eyJ))[A-Za-z0-9_.]{1,200}\Z")  # nor a token of known shape
MOST_NAMES = _MANY = 400_000  # tensor names, environment entries


def mapping(value: Any) -> Mapping[str, Any]:
    """The value when it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: Any, limit: int = 400) -> str | None:
    """A text, clean; None for anything else."""
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
    word = text(value, 80)
    return word.lower() if word else None


def os_part(raw: Mapping[str, Any]) -> Os:
    """The system."""
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
        kernel=text(raw.get("kernel"), 80),
        distro=text(raw.get("distro"), 80),
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
        compute_runtime=_flag(raw.get("compute_runtime")),
        compiler=_flag(raw.get("compiler")),
    )


def gpus(raw: Any) -> tuple[Gpu, ...] | None:
    """The cards, None where nothing is told."""
    if not isinstance(raw, list):
        return None
    found = []
    for position, entry in enumerate(raw[:1024]):
        card = mapping(entry)
        speed = card.get("link_gts")
        found.append(
            Gpu(
                position=position,
                place=position,
                index=_whole(card.get("index")),
                pci=text(card.get("pci"), 40),
                device_id=_device_id(card.get("device_id")),
                name=text(card.get("name"), 120),
                memory_bytes=_whole(card.get("memory_bytes"), 1),
                bar_bytes=_whole(card.get("bar_bytes")),
                guc=text(card.get("guc"), 40),
                link_gts=_speed(speed),
                link_width=_whole(card.get("link_width"), 1),
                display_attached=_flag(card.get("display_attached")),
                root_port=text(card.get("root_port"), 40),
                gemm_exact=_flag(card.get("gemm_exact")),
                driver=text(card.get("driver"), 40),
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
    word = _word(value)
    return word if word is None or word.startswith("0x") else f"0x{word}"


def matrix(raw: Any) -> tuple[tuple[bool | None, ...], ...] | None:
    """A square of booleans; None where it is none."""
    if not isinstance(raw, list) or not raw or len(raw) > 64:
        return None
    rows = [tuple(_reach(cell) for cell in row) for row in raw if isinstance(row, list)]
    return tuple(rows) if len(rows) == len(raw) and all(len(row) == len(rows) for row in rows) else None


def _reach(cell: Any) -> bool | None:
    if isinstance(cell, bool):
        return cell
    return bool(cell) if isinstance(cell, int) and cell in (0, 1) else None


def libraries(raw: Any) -> tuple[Library, ...] | None:
    """The libraries that have a name."""
    if not isinstance(raw, list):
        return None
    found = []
    for entry in raw[:4096]:
        row = mapping(entry)
        name = text(row.get("name"), 120)
        if not name:
            continue
        names = row.get("env_names")
        known = frozenset(n for n in names[:_MANY] if isinstance(n, str)) if isinstance(names, list) else None
        found.append(Library(name, text(row.get("path")), _version(row.get("version")), known))
    return tuple(found)


def _version(value: Any) -> str | None:
    version = text(value, 60)
    return version if parsed(version) is not None else None


def versions(raw: Any) -> Mapping[str, str] | None:
    """Name -> version of what has one."""
    if not isinstance(raw, dict):
        return None
    pairs = ((clean(str(k), 80).lower().replace("_", "-"), _version(v)) for k, v in list(raw.items())[:_MANY])
    return {name: version for name, version in pairs if version is not None}


def texts(raw: Any) -> Mapping[str, str]:
    """Name -> text, clean; what is none is left out."""
    pairs = ((clean(str(name), 80), text(value)) for name, value in list(mapping(raw).items())[:100])
    return {name: value for name, value in pairs if value}


def names(raw: Any) -> tuple[str, ...]:
    """Names of variables."""
    return tuple(n for n in raw[:1000] if isinstance(n, str) and is_name(n)) if isinstance(raw, list) else ()


def env(raw: Any) -> Mapping[str, str] | None:
    """Variables by name: names that are no names, and values that are no text or number, are left out."""
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


def _tensor_name(name: str) -> str:
    """A name without harm. There are 140 000 of them: those that can hold none are passed as they are."""
    return name if _PLAIN_NAME.match(name) else clean(name, 200)


def model(raw: Any) -> Model | None:
    """The checkpoint."""
    if not isinstance(raw, dict):
        return None
    config = mapping(raw.get("config"))
    names = raw.get("tensor_names")
    missing, files = raw.get("shards_missing"), raw.get("files")
    return Model(
        config=config,
        quantization=mapping(raw.get("quantization_config")) or mapping(config.get("quantization_config")),
        quantization_empty=raw.get("quantization_config") == {},
        tensor_names=frozenset(_tensor_name(n) for n in names[:_MANY] if isinstance(n, str))
        if isinstance(names, list) and names
        else None,
        shards_missing=tuple(clean(n, 120) for n in missing[:1000] if isinstance(n, str))
        if isinstance(missing, list)
        else (),
        index_error=text(raw.get("index_error")),
        index_advice=text(raw.get("index_advice")),
        weights_bytes=_whole(raw.get("weights_bytes"), 1),
        unlike_config=_unlike(mapping(raw.get("unlike_config"))),
        files=tuple(clean(n, 120) for n in files[:10_000] if isinstance(n, str)) if isinstance(files, list) else None,
        header_error=_fault(mapping(raw.get("header_error"))),
        tensors_lost=_fault(mapping(raw.get("tensors_lost"))),
        tokenizer_error=_fault(mapping(raw.get("tokenizer_error"))),
        tokenizer_missing=raw.get("tokenizer_missing") is True,
        folder=text(raw.get("folder"), 1000) or None,
    )


def _fault(raw: Mapping[str, Any]) -> Fault | None:
    first, file = text(raw.get("first"), 300), text(raw.get("file"), 200)
    return Fault(first, file, _whole(raw.get("count"), 1) or 1) if first and file else None


def _unlike(raw: Mapping[str, Any]) -> tuple[str, int] | None:
    first = text(raw.get("first"), 300)
    return (first, _whole(raw.get("count"), 1) or 1) if first else None


def plan(raw: Any) -> Plan | None:
    """The launch."""
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
        attention_backend=(text(raw.get("attention_backend"), 80) or "").upper() or None,
        block_size=_whole(raw.get("block_size"), 1),
        speculative_method=_word(raw.get("speculative_method")),
        graph=_graph(raw.get("graph")),
        cudagraph_capture_sizes=tuple(counted) if counted is not None else None,
        enable_expert_parallel=_flag(raw.get("enable_expert_parallel")),
        tool_call_parser=text(raw.get("tool_call_parser"), 80) or None,
        reasoning_parser=text(raw.get("reasoning_parser"), 80) or None,
        enable_chunked_prefill=_flag(raw.get("enable_chunked_prefill")),
        enable_prefix_caching=_flag(raw.get("enable_prefix_caching")),
        profiler=_word(raw.get("profiler")),
        enforce_eager=_flag(raw.get("enforce_eager")),
        quantization=text(raw.get("quantization"), 80) or None,
    )


def _graph(value: Any) -> bool | None:
    """A plan's graph is a switch, or the name of vLLM's mode."""
    if isinstance(value, str):
        return value.strip().lower() not in ("", "none", "off", "false", "no", "0")
    return _flag(value)


def parsers(raw: Any) -> Mapping[str, frozenset[str]]:
    """Parser names that the installed vLLM told."""
    return {
        kind: frozenset(n for n in names if isinstance(n, str))
        for kind, names in mapping(raw).items()
        if kind in ("tool", "reasoning") and isinstance(names, list) and names
    }
