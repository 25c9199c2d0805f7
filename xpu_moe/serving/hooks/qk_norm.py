"""MiniMax's query/key norm across ranks as one operator.

At tensor parallel size > 1 the model calls the opaque operator vllm::minimax_qk_norm_fusion, whose body looks up a
fallback (two kernels round an all-reduce of two floats a token) among its module's globals at every call. That global
is replaced: where a backend of ops.allreduce_qk_rms serves the case, it does; the rest goes where it went before.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from xpu_moe import comm
from xpu_moe.ops.contract import NoBackend
from xpu_moe.ops.qk_rms import selection


def before(context: Any) -> str:
    if context.vllm_config.parallel_config.tensor_parallel_size < 2:
        return ""
    from vllm.model_executor.layers.minimax_rms_norm import rms_norm_tp

    original = rms_norm_tp._minimax_qk_norm_tp_fallback
    if getattr(original, "_xpu_moe", False):
        return ""

    def fallback(
        qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, q_size: int, kv_size: int, tp_rank: int,
        tp_world: int, eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        group = _group()
        if not _serves(qkv, q_weight, k_weight, q_size, kv_size, eps, group):
            return original(qkv, q_weight, k_weight, q_size, kv_size, tp_rank, tp_world, eps)
        return torch.ops.xpu_moe.allreduce_qk_rms(qkv, q_weight, k_weight, q_size, kv_size, eps, tp_world, group.name)

    fallback._xpu_moe = True  # type: ignore[attr-defined]
    rms_norm_tp._minimax_qk_norm_tp_fallback = fallback
    return "query/key norm through ops.allreduce_qk_rms where a backend serves it"


@lru_cache(maxsize=1)
def _group() -> Any:
    from vllm.distributed.parallel_state import get_tp_group

    return comm.adopt(get_tp_group().device_group)


_told: dict[str, str] = {}


def _serves(qkv: Any, q_weight: Any, k_weight: Any, q_size: int, kv_size: int, eps: float, group: Any) -> bool:
    """Asked at every call: the dispatcher keeps its answers."""
    from xpu_moe.serving import tell

    try:
        taken = selection(qkv, q_weight, k_weight, q_size, kv_size, eps, group)
    except NoBackend as error:
        if "no" not in _told:
            _told["no"] = str(error)
            tell.note(f"query/key norm stays vLLM's: {error}")
        return False
    if taken.name not in _told:
        _told[taken.name] = taken.reason
        tell.note(f"query/key norm: {taken.line()}")
    return True
