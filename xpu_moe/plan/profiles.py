"""Named launches: settings, the measured points behind them, and whether they are proved. Data.

Proved is a launch of which a real run is recorded in this repository: others' published one, or our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

MIB = 1 << 20
_KERNELS = "the kernels are measured on H200 (docs/measurements); of a vLLM server no run is recorded"
_NOTE = "B70 u4 decode note (4x Arc Pro B70, MiniMax-M2.7 AutoRound INT4, batch 1)"
_PUBLIC = "later public notes of the same author (to 2026-05-23)"


@dataclass(frozen=True)
class Point:
    """One measured figure: `tok_per_s` of a prompt and output length, by whom, under which conditions.

    `patched`: it needed a vLLM with patches, or other settings than the profile's, so it proves nothing of ours.
    """

    tok_per_s: float
    prompt: int
    output: int
    source: str
    conditions: str = ""
    patched: bool = False


@dataclass(frozen=True)
class Profile:
    """`settings` are the doctor's plan fields; `flags` further vLLM arguments; `env` a profile of xpu_moe.env.

    `evidence` says what is recorded of it, and what is not; `proved` is whether its points are runs of these settings.
    `reserve`: bytes beside weights, activations and KV where a measurement differs from the card's usual figure.
    """

    name: str
    device: str
    card: str
    doc: str
    evidence: str
    settings: Mapping[str, Any]
    flags: tuple[str, ...] = ()
    env: str = "default"
    points: tuple[Point, ...] = ()
    reserve: int | None = None
    compilation: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def proved(self) -> bool:
        """Whether a real run of these settings is recorded here."""
        return any(not point.patched for point in self.points)

    @property
    def probe_first(self) -> bool:
        """Whether its graphs stay off until the replay probe has passed on the machine."""
        return self.device == "xpu" and bool(self.settings.get("graph"))

    def plan(self) -> dict[str, Any]:
        """The `plan` object of the doctor's facts."""
        return {"device": self.device, **self.settings}


_B70 = {
    "tp": 4, "pp": 1, "dcp": 1, "dtype": "float16", "max_num_seqs": 1, "kv_cache_dtype": "auto",
    "attention_backend": None, "speculative_method": None, "enable_expert_parallel": False,
    "tool_call_parser": "minimax_m2", "reasoning_parser": "minimax_m2",
}  # fmt: skip
_H200 = {
    "pp": 1, "dcp": 1, "kv_cache_dtype": "auto", "block_size": 16, "graph": True, "tool_call_parser": "minimax_m2",
    "reasoning_parser": "minimax_m2",
}  # fmt: skip

_ALL = (
    Profile(
        "b70-tp4-latency", "xpu", "b70",
        "one request at a time, 2048 tokens: the fastest that others measured without graphs",
        "others ran it on four B70, with their own MoE kernels and 1.02 GiB of KV where this pins 256 MiB; "
        "with this plugin no run is recorded",
        {**_B70, "max_model_len": 2048, "max_num_batched_tokens": 1024, "block_size": 64, "graph": False,
         "kv_cache_memory_bytes": 256 * MIB},
        points=(
            Point(37.136187, 512, 512, _NOTE, "oneCCL's exchange left alone; KV sized by vLLM (1.02 GiB)"),
            Point(34.578045, 512, 256, _NOTE, "oneCCL's exchange left alone; KV sized by vLLM (1.02 GiB)"),
        ),
    ),
    Profile(
        "b70-tp4-long", "xpu", "b70",
        "32,768 tokens without graphs; only with no display on the cards (xe.disable_display=1)",
        "others ran this length and KV size with graphs and a patched vLLM only; without graphs no run is recorded",
        {**_B70, "max_model_len": 32768, "max_num_batched_tokens": 512, "block_size": 64, "graph": False,
         "kv_cache_memory_bytes": 33792 * 63488},
        reserve=384 * MIB,
        points=(Point(84.12, 510, 1536, _PUBLIC, "with graphs and patches; 33,792 KV tokens, no display", True),),
    ),
    Profile(
        "b70-tp4-graph", "xpu", "b70",
        "the public 89 tok/s recipe's serve line: PIECEWISE graphs, 32,768 tokens",
        "others ran it with a patched vLLM; with an unpatched one and this plugin no run is recorded",
        {**_B70, "max_model_len": 32768, "max_num_batched_tokens": 512, "block_size": 256, "graph": True,
         "cudagraph_capture_sizes": [1, 2, 4], "kv_cache_memory_bytes": 33792 * 63488, "enable_prefix_caching": False},
        ("--distributed-executor-backend", "mp", "--gpu-memory-utilization", "0.95", "--no-enable-prefix-caching",
         "--no-async-scheduling"),
        env="graph",
        reserve=384 * MIB,
        points=(
            Point(89.314195, 512, 1536, _PUBLIC, "context 2048, patched vLLM, strict quality gates", True),
            Point(83.172184, 512, 1536, _PUBLIC, "patched vLLM, fresh host, PCIe 4 links", True),
            Point(84.12, 510, 1536, _PUBLIC, "patched vLLM, behind the endpoint, context 32,768", True),
        ),
        compilation=MappingProxyType(
            {"use_inductor_graph_partition": True, "compile_sizes": [1], "cudagraph_mode": "PIECEWISE"}
        ),
    ),
    Profile(
        "b60-tp4-pp2", "xpu", "b60",
        "eight 24 GB cards: TP8 is impossible (192 columns against a group of 128), so two stages of four slices",
        "computed from config.json; no run is recorded",
        {**_B70, "pp": 2, "max_model_len": 2048, "max_num_batched_tokens": 1024, "block_size": 64, "graph": False,
         "kv_cache_memory_bytes": 256 * MIB},
    ),
    Profile(
        "h200-tp4-fp8", "cuda", "h200", "MiniMax FP8 on four H200: long contexts, many requests",
        _KERNELS,
        {**_H200, "tp": 4, "dtype": "bfloat16", "max_model_len": 131072, "max_num_batched_tokens": 8192,
         "max_num_seqs": 32},
    ),
    Profile(
        "h200-tp1-int4", "cuda", "h200", "MiniMax INT4 (115 GiB with scales) on one H200",
        _KERNELS,
        {**_H200, "tp": 1, "dtype": "float16", "max_model_len": 32768, "max_num_batched_tokens": 4096,
         "max_num_seqs": 8},
    ),
)  # fmt: skip
PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in _ALL})
