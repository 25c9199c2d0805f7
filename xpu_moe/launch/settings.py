"""The values of a launch and where each comes from: flag > environment > profile > demo > default.

One row a setting: its flag, the environment name that the field's scripts use, vLLM's flag, its default. Standard
library only: these checks run in the system's Python before anything is installed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xpu_moe.env import read
from xpu_moe.launch.backends import backend
from xpu_moe.launch.errors import USAGE, LaunchError


@dataclass(frozen=True)
class Row:
    """One setting. `vllm` is vLLM's flag ("" = not handed on); `demo` replaces the default under `--demo`."""

    name: str
    flag: str
    env: str
    parse: Callable[[str], Any]
    vllm: str
    default: Any
    doc: str
    demo: Any = None
    fact: str = ""  # name in the doctor's `plan`


@dataclass(frozen=True)
class Setting:
    """A resolved value with its origin in words."""

    row: Row
    value: Any
    origin: str


def count(text: str) -> int:
    """A whole number from 1 to 2**30: more is a typing error of any of them."""
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 1 <= int(text) <= 1 << 30:
        raise ValueError(f"wanted a whole number of at least 1 (and at most {1 << 30}), digits only")
    return int(text)


def port(text: str) -> int:
    """A TCP port, 1..65535."""
    if not re.fullmatch(r"[0-9]+", text) or not 1 <= int(text) <= 65535:
        raise ValueError("wanted a port between 1 and 65535")
    return int(text)


_SUFFIX = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def size(text: str) -> int:
    """Bytes, with vLLM's suffixes: k m g t are powers of 1000, K M G T powers of 1024."""
    match = re.fullmatch(r"([0-9]+)([kmgtKMGT]?)", text)
    if not match or int(match[1]) < 1:
        raise ValueError("wanted bytes such as 268435456 or 256M (k m g t: powers of 1000, K M G T: of 1024)")
    return int(match[1]) * _SUFFIX[match[2]]


def word(text: str) -> str:
    """Any text without control characters."""
    if not text or any(ord(c) < 32 for c in text):
        raise ValueError("wanted a text without control characters")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """One of the given words."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"wanted one of {', '.join(choices)}")
        return text

    return parse


_DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")

ROWS = (
    Row("tp", "--tp", "TP", count, "--tensor-parallel-size", 1, "tensor-parallel size", fact="tp"),
    Row("pp", "--pp", "PP", count, "--pipeline-parallel-size", 1, "pipeline-parallel size", fact="pp"),
    Row("dcp", "--dcp", "", count, "--decode-context-parallel-size", 1, "decode-context-parallel size", fact="dcp"),
    Row("dtype", "--dtype", "DTYPE", one_of(*_DTYPES), "--dtype", "auto", "activation type", "bfloat16", "dtype"),
    Row(
        "max_model_len", "--max-model-len", "MAX_MODEL_LEN", count, "--max-model-len", None,
        "longest prompt + answer, tokens", 1024, "max_model_len",
    ),
    Row(
        "max_batched_tokens", "--max-num-batched-tokens", "MAX_BATCHED_TOKENS", count, "--max-num-batched-tokens",
        None, "tokens of one step", 1024, "max_num_batched_tokens",
    ),
    Row(
        "max_num_seqs", "--max-num-seqs", "MAX_NUM_SEQS", count, "--max-num-seqs", None, "requests served at once", 8,
        "max_num_seqs",
    ),
    Row(
        "block_size", "--block-size", "BLOCK_SIZE", count, "--block-size", None, "tokens of a KV block",
        fact="block_size",
    ),
    Row(
        "kv_cache_memory_bytes", "--kv-cache-memory-bytes", "", size, "--kv-cache-memory-bytes", None,
        "bytes of KV cache on each rank (256M)", 64 << 20, "kv_cache_memory_bytes",
    ),
    Row(
        "kv_cache_dtype", "--kv-cache-dtype", "", word, "--kv-cache-dtype", None, "type of the KV cache",
        fact="kv_cache_dtype",
    ),
    Row(
        "attention_backend", "--attention-backend", "", word, "--attention-backend", None, "attention kernels",
        fact="attention_backend",
    ),
    Row(
        "tool_call_parser", "--tool-call-parser", "", word, "--tool-call-parser", "minimax_m2",
        "how tool calls are read", "", "tool_call_parser",
    ),
    Row(
        "reasoning_parser", "--reasoning-parser", "", word, "--reasoning-parser", "minimax_m2",
        "how reasoning is split off", "", "reasoning_parser",
    ),
    Row("graph", "--graph", "", one_of("auto", "on", "off"), "", "auto", "graphs: the policy's choice, on or off",
        fact="graph"),
    Row("host", "--host", "", word, "--host", "127.0.0.1", "address to listen on"),
    Row("port", "--port", "", port, "--port", 8000, "port to listen on"),
    Row(
        "served_model_name", "--served-model-name", "", word, "--served-model-name", None,
        "name that clients ask for (default: the folder's)",
    ),
    Row(
        "ccl_ipc", "--ccl-ipc", "CCL_IPC", one_of("pidfd", "drmfd", "sockets"), "", None,
        "how oneCCL exchanges memory handles (CCL_ZE_IPC_EXCHANGE)",
    ),
    Row("backend", "--backend", "XPU_MOE_BACKEND", backend, "", "", "ask for one MoE backend by name"),
    Row("input_len", "--input-len", "INPUT_LEN", count, "", None, "prompt tokens of the bench line that is printed"),
    Row("output_len", "--output-len", "OUTPUT_LEN", count, "", None, "answer tokens of that bench line"),
    Row("num_prompts", "--num-prompts", "NUM_PROMPTS", count, "", None, "requests of that bench line"),
)  # fmt: skip

BY_NAME = {row.name: row for row in ROWS}
Settings = Mapping[str, Setting]


def resolve(
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    *,
    demo: bool,
    profile: Mapping[str, Any] | None = None,
    profile_name: str = "",
) -> dict[str, Setting]:
    """Every row's value with its origin. LaunchError(USAGE) names the flag or variable whose value does not parse."""
    return {row.name: _one(row, flags.get(row.name), environ, demo, profile or {}, profile_name) for row in ROWS}


def _one(
    row: Row, flag: str | None, environ: Mapping[str, str], demo: bool, profile: Mapping[str, Any], profile_name: str
) -> Setting:
    if flag is not None:
        return Setting(row, _parsed(row, flag, row.flag), f"flag {row.flag}")
    given = read.text(row.env, environ) if row.env else None
    if given:
        return Setting(row, _parsed(row, given, row.env), f"environment {row.env}")
    if row.name in profile:
        return Setting(row, profile[row.name], f"profile {profile_name}")
    if demo and row.demo is not None:
        return Setting(row, row.demo, "demo")
    return Setting(row, row.default, "default")


def _parsed(row: Row, text: str, where: str) -> Any:
    try:
        return row.parse(text)
    except ValueError as error:
        raise LaunchError(USAGE, f"{where}={text!r}: {error}") from None
