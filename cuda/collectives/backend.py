"""The collective kernels as backends of `all_reduce`, `allreduce_qk_rms` and `all_reduce_add_rms`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from xpu_moe.cuda import compiler
from xpu_moe.cuda.collectives import arena as arenas
from xpu_moe.cuda.collectives import launch, table
from xpu_moe.ops.contract import Case, Support

_FLOATS = ("float16", "bfloat16", "float32")
_ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4}


def _refusal(case: Case) -> str | None:
    """What stops every kernel of this room."""
    if not 2 <= case.world_size <= arenas.MAX_WORLD:
        return f"world size {case.world_size}: wanted 2 to {arenas.MAX_WORLD}"
    if case.dtype not in _FLOATS:
        return f"dtype {case.dtype}: wanted one of {', '.join(_FLOATS)}"
    if not compiler.available():
        return "no NVRTC and no nvcc: the kernel cannot be compiled (torch's CUDA build brings NVRTC)"
    if arenas.find(case.group) is None:
        return arenas.reason(case.group)
    return None


def _fits(case: Case, needed: int) -> str | None:
    arena = arenas.find(case.group)
    if arena is not None and needed > arena.slot_bytes:
        return f"it needs {needed} bytes of a slot, the arena's slots have {arena.slot_bytes}"
    return None


def _arena(group: str) -> arenas.Arena:
    found = arenas.find(group)
    if found is None:
        raise arenas.NoPeerMemory(arenas.reason(group))
    return found


class _Backend:
    op = ""

    def prepare(self, weights: Any, case: Case) -> Any:
        """No weights."""
        return weights

    def workspace(self, case: Case) -> int:
        """None of the caller's: peer memory belongs to the group."""
        return 0


class AllReduce(_Backend):
    """One or two trips over peer memory; which one the table says."""

    op = "all_reduce"

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.name = f"peer_{algorithm}"

    def supports(self, case: Case) -> Support:
        reason = _refusal(case)
        if reason is None:
            choice = table.choose(case.architecture, case.world_size, case.bytes)
            if choice.algorithm != self.algorithm:
                return Support(False, choice.reason)
            total = launch.vectors(case.bytes, 1)
            reason = _fits(case, launch.slot_bytes_needed(self.algorithm, total, case.world_size))
            if reason is None:
                return Support(True, choice.reason)
        return Support(False, reason)

    def bind(self, x: torch.Tensor, *, world_size: int, group: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
        """A callable (x, out) for tensors of this size and dtype."""
        return _all_reduce(group, self.algorithm, x.dtype, x.numel())

    def run(self, x: torch.Tensor, *, world_size: int, group: str, out: torch.Tensor) -> None:
        _all_reduce(group, self.algorithm, x.dtype, x.numel())(x, out)


class QkRms(_Backend):
    """Variance exchange and norm of Q and K in one launch."""

    name = "peer_fused"
    op = "allreduce_qk_rms"

    def supports(self, case: Case) -> Support:
        reason = _refusal(case)
        row = table.row(case.architecture, case.world_size)
        if reason is None and case.tokens > row.qk_tokens:
            reason = f"{case.tokens} tokens > {row.qk_tokens}: a block a token loses to three kernels ({row.source})"
        if reason is None:
            reason = _fits(case, (case.world_size - 1) * case.tokens * 8)
        if reason is not None:
            return Support(False, reason)
        return Support(True, f"8 bytes a token and peer, one launch, <= {row.qk_tokens} tokens ({row.source})")

    def run(self, qkv, q_weight, k_weight, *, q_size, kv_size, eps, world_size, group, q_out, k_out) -> None:
        call = _qk_rms(group, qkv.dtype, q_weight.dtype, qkv.shape[0], q_size, kv_size, eps)
        call(qkv, q_weight, k_weight, q_out, k_out)


class AddRms(_Backend):
    """One-shot all-reduce, residual add and RMS norm in one launch."""

    name = "peer_fused"
    op = "all_reduce_add_rms"

    def supports(self, case: Case) -> Support:
        reason = _refusal(case)
        row = table.row(case.architecture, case.world_size)
        if reason is None and case.hidden_size * _ITEMSIZE[case.dtype] % 16:
            reason = f"hidden_size {case.hidden_size}: a row of {case.dtype} is no multiple of 16 bytes"
        if reason is None and case.bytes > row.norm_bytes:
            reason = f"{case.bytes} bytes > {row.norm_bytes}: one trip moves too much ({row.source})"
        if reason is None:
            reason = _fits(case, (case.world_size - 1) * case.bytes)
        if reason is not None:
            return Support(False, reason)
        return Support(True, f"one launch for x of <= {row.norm_bytes} bytes ({row.source})")

    def run(self, x, residual, weight, *, eps, world_size, group, normed_out, residual_out) -> None:
        call = _add_rms(group, x.dtype, weight.dtype, x.shape[0], x.shape[1], eps)
        call(x, residual, weight, normed_out, residual_out)


@lru_cache(maxsize=1024)
def _all_reduce(group: str, algorithm: str, dtype: torch.dtype, count: int):
    return launch.all_reduce(_arena(group), algorithm, dtype, count)


@lru_cache(maxsize=1024)
def _qk_rms(group: str, *key):
    return launch.qk_rms(_arena(group), *key)


@lru_cache(maxsize=1024)
def _add_rms(group: str, *key):
    return launch.add_rms(_arena(group), *key)


def forget() -> None:
    """Drop launches bound to arenas that are gone."""
    for kept in (_all_reduce, _qk_rms, _add_rms):
        kept.cache_clear()
