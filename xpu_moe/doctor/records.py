"""The parts of the facts, typed. Every field may be None = unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xpu_moe.doctor.text import clean


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
    compute_runtime: bool | None = None
    compiler: bool | None = None


_VENDORS = (("nvidia", "cuda"), ("intel", "xpu"), ("amd", "other"), ("radeon", "other"))


@dataclass(frozen=True)
class Gpu:
    """`link_gts`, `link_width` belong to the bridge above the card. `position` is its number in the runtime that the
    plan uses (masks and `peer_access` count so), `place` its place in the facts' list."""

    position: int = 0
    place: int = 0
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
    driver: str | None = None

    def about(self, fact: str) -> str:
        return f"gpus[{self.place}].{fact}"

    @property
    def runtime(self) -> str | None:
        """xpu, cuda, "other" (of no vendor that we serve), None where the name does not tell."""
        name = (self.name or "").lower()
        return next((kind for word, kind in _VENDORS if word in name), None)


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
    quantization: str | None = None

    @property
    def world(self) -> int | None:
        """Cards that work together: tp x pp; None when tp is unknown."""
        return None if self.tp is None else self.tp * (self.pp or 1)


@dataclass(frozen=True)
class Fault:
    """The first of `count` like faults of a checkpoint's files: what is said of it, and the file."""

    first: str
    file: str
    count: int


@dataclass(frozen=True)
class Model:
    config: Mapping[str, Any] = field(default_factory=dict)
    quantization: Mapping[str, Any] = field(default_factory=dict)
    quantization_empty: bool = False  # said to be none, rather than not said
    tensor_names: frozenset[str] | None = None
    shards_missing: tuple[str, ...] = ()
    index_error: str | None = None
    index_advice: str | None = None
    weights_bytes: int | None = None
    unlike_config: tuple[str, int] | None = None  # the first tensor that config.json means otherwise, and how many
    files: tuple[str, ...] | None = None  # of weights, in a folder that was looked at; tensor_names are then all
    header_error: Fault | None = None
    tensors_lost: Fault | None = None
    tokenizer_error: Fault | None = None
    tokenizer_missing: bool = False
    folder: str | None = None  # never recorded in a file: it may be personal

    def path(self, file: str) -> str:
        """The file with its folder, as far as that is known."""
        return f"{self.folder.rstrip('/')}/{file}" if self.folder else file

    @property
    def model_type(self) -> str:
        return clean(str(self.config.get("model_type") or ""), 60).lower()
