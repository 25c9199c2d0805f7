"""Q/K RMS norm across tensor-parallel ranks, on this rank's packed qkv.

MiniMax norms Q (and K) over the **whole** width of all heads, so a rank holds a slice of the vector and the mean of
squares is a sum over ranks:

    sums[m] = (sum of q[m]^2, sum of k[m]^2)                            `qk_rms_partial`, float32 [M, 2]
    sums    = all-reduce(sums)
    q[m]    = q[m] * rsqrt(sums[m, 0] / (q_size * world_size) + eps) * q_weight     `qk_rms_apply`; k likewise

Arithmetic in float32, rounded once to qkv's dtype. `allreduce_qk_rms` is the three as one operator to torch.compile.

qkv [M, >= q_size + kv_size] in fp16/bf16/fp32, rows may be strided, elements of a row are adjacent: Q, then K, then
what follows (V) untouched. q_weight [q_size] and k_weight [kv_size] are this rank's shards, fp16/bf16/fp32.

Backends write into the tensors that they are given (rows may be strided: in place, `q_out` and `k_out` are views of
qkv):

    qk_rms_partial    run(qkv, *, q_size, kv_size, out)
    qk_rms_apply      run(qkv, sums, q_weight, k_weight, *, q_size, kv_size, eps, world_size, q_out, k_out)
    allreduce_qk_rms  run(qkv, q_weight, k_weight, *, q_size, kv_size, eps, world_size, group, q_out, k_out)
"""

from __future__ import annotations

from functools import lru_cache

import torch

from xpu_moe import device
from xpu_moe.comm import group as groups
from xpu_moe.ops import checks
from xpu_moe.ops.contract import Backend, Case, Selection, select
from xpu_moe.ops.library import define

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def case_of(
    op: str, qkv: torch.Tensor, q_size: int, kv_size: int, weights: torch.Tensor | None = None,
    world_size: int = 1, group: str = "",
) -> Case:  # fmt: skip
    """The `Case` of a call of `op`, one of the three of this file."""
    weights_dtype = torch.float32 if weights is None else weights.dtype
    return _case(op, qkv.device.type, qkv.dtype, qkv.shape[0], q_size, kv_size, weights_dtype, world_size, group)


def selection(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, q_size: int, kv_size: int, eps: float,
    communicator: groups.Communicator,
) -> Selection:  # fmt: skip
    """Which backend `allreduce_qk_rms` takes for these arguments, and why."""
    who = communicator
    return select(case_of("allreduce_qk_rms", qkv, q_size, kv_size, q_weight, who.world_size, who.name))


def qk_rms_partial(qkv: torch.Tensor, q_size: int, kv_size: int) -> torch.Tensor:
    """Sums of squares of this rank's Q and K: float32 [M, 2]. Raises BadArgument."""
    check_qkv(qkv, q_size, kv_size)
    return torch.ops.xpu_moe.qk_rms_partial(qkv, q_size, kv_size)


def qk_rms_apply(
    qkv: torch.Tensor, sums: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, q_size: int, kv_size: int,
    eps: float, world_size: int, *, inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Scale Q and K by their all-reduced `sums` (float32 [M, 2]): (q [M, q_size], k [M, kv_size]).

    With `inplace` they are written into qkv and returned as views of it, else they are new contiguous tensors.
    """
    check_qkv(qkv, q_size, kv_size)
    check_weights(qkv, q_weight, k_weight, q_size, kv_size)
    checks.shape("sums", sums, (qkv.shape[0], 2))
    checks.dtype("sums", sums, torch.float32)
    checks.inference_only(sums=sums)
    checks.same_device({"qkv": qkv, "sums": sums})
    checks.finite("eps", eps, 0.0)
    checks.positive("world_size", world_size)
    arguments = (qkv, sums, q_weight, k_weight, q_size, kv_size, eps, world_size)
    if not inplace:
        return torch.ops.xpu_moe.qk_rms_apply(*arguments)
    torch.ops.xpu_moe.qk_rms_apply_(*arguments)
    return views(qkv, q_size, kv_size)


def allreduce_qk_rms(
    qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, q_size: int, kv_size: int, eps: float,
    communicator: groups.Communicator | None = None, *, inplace: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Norm Q and K of the packed qkv over their whole width on all ranks: (q [M, q_size], k [M, kv_size]).

    With `inplace` they are written into qkv and returned as views of it, else they are new contiguous tensors. The
    communicator is the tensor-parallel group's (the default group where None). Raises BadArgument.
    """
    check_qkv(qkv, q_size, kv_size)
    check_weights(qkv, q_weight, k_weight, q_size, kv_size)
    checks.finite("eps", eps, 0.0)
    who = groups.given(communicator)
    arguments = (qkv, q_weight, k_weight, q_size, kv_size, eps, who.world_size, who.name)
    eager = type(qkv) is torch.Tensor and not torch.compiler.is_compiling()  # then the dispatcher is pure cost
    if not inplace:
        return _fused(*arguments) if eager else torch.ops.xpu_moe.allreduce_qk_rms(*arguments)
    (_fused_inplace if eager else torch.ops.xpu_moe.allreduce_qk_rms_)(*arguments)
    return views(qkv, q_size, kv_size)


def views(qkv: torch.Tensor, q_size: int, kv_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Q and K as views of the packed qkv."""
    return qkv[:, :q_size], qkv[:, q_size : q_size + kv_size]


def check_qkv(qkv: torch.Tensor, q_size: int, kv_size: int) -> None:
    checks.rank("qkv", qkv, 2)
    checks.inference_only(qkv=qkv)
    checks.dtype("qkv", qkv, *FLOATS)
    checks.positive("q_size", q_size)
    checks.positive("kv_size", kv_size)
    wanted = f">= q_size + kv_size = {q_size + kv_size}"
    checks.require(qkv.shape[1] >= q_size + kv_size, "qkv.shape[1]", qkv.shape[1], wanted)
    checks.require(qkv.stride(1) == 1, "qkv.stride(1)", qkv.stride(1), "1 (elements of a row adjacent)")


def check_weights(qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, q_size: int, kv_size: int) -> None:
    checks.shape("q_weight", q_weight, (q_size,))
    checks.shape("k_weight", k_weight, (kv_size,))
    checks.dtype("q_weight", q_weight, *FLOATS)
    checks.dtype("k_weight", k_weight, q_weight.dtype)
    checks.same_device({"qkv": qkv, "q_weight": q_weight, "k_weight": k_weight})
    checks.inference_only(q_weight=q_weight, k_weight=k_weight)


@lru_cache(maxsize=4096)
def _case(
    op: str, kind: str, dtype: torch.dtype, tokens: int, q_size: int, kv_size: int, weights_dtype: torch.dtype,
    world_size: int, group: str,
) -> Case:  # fmt: skip
    return Case(
        op=op,
        device=kind,
        architecture=device.architecture(kind),
        dtype=str(dtype).removeprefix("torch."),
        tokens=tokens,
        min_tokens=tokens,
        weights_dtype=str(weights_dtype).removeprefix("torch."),
        world_size=world_size,
        q_size=q_size,
        kv_size=kv_size,
        bytes=8 * tokens,
        group=group,
    )


@lru_cache(maxsize=4096)
def _backend(
    op: str, kind: str, dtype: torch.dtype, tokens: int, q_size: int, kv_size: int,
    weights_dtype: torch.dtype = torch.float32, world_size: int = 1, group: str = "",
) -> Backend:  # fmt: skip
    return select(_case(op, kind, dtype, tokens, q_size, kv_size, weights_dtype, world_size, group)).backend


def forget() -> None:
    """Drop cached decisions: for a backend that became available (peer memory mapped) after a first call."""
    _backend.cache_clear()
    select.cache_clear()


def run_partial(qkv: torch.Tensor, q_size: int, kv_size: int, out: torch.Tensor) -> None:
    """`qk_rms_partial` inside other operators: no checks, into `out`."""
    if qkv.shape[0]:
        backend = _backend("qk_rms_partial", qkv.device.type, qkv.dtype, qkv.shape[0], q_size, kv_size)
        backend.run(qkv, q_size=q_size, kv_size=kv_size, out=out)


def run_apply(qkv, sums, q_weight, k_weight, q_size, kv_size, eps, world_size, q_out, k_out) -> None:
    """`qk_rms_apply` inside other operators: no checks, into `q_out` and `k_out`."""
    if qkv.shape[0]:
        kind, tokens = qkv.device.type, qkv.shape[0]
        backend = _backend("qk_rms_apply", kind, qkv.dtype, tokens, q_size, kv_size, q_weight.dtype, world_size)
        backend.run(
            qkv, sums, q_weight, k_weight, q_size=q_size, kv_size=kv_size, eps=eps, world_size=world_size,
            q_out=q_out, k_out=k_out,
        )  # fmt: skip


def _run_fused(qkv, q_weight, k_weight, q_size, kv_size, eps, world_size, group, q_out, k_out) -> None:
    if qkv.shape[0]:
        kind, tokens = qkv.device.type, qkv.shape[0]
        where = (kind, qkv.dtype, tokens, q_size, kv_size, q_weight.dtype, world_size, group)
        _backend("allreduce_qk_rms", *where).run(
            qkv, q_weight, k_weight, q_size=q_size, kv_size=kv_size, eps=eps, world_size=world_size, group=group,
            q_out=q_out, k_out=k_out,
        )  # fmt: skip


def _empty(qkv: torch.Tensor, q_size: int, kv_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return qkv.new_empty((qkv.shape[0], q_size)), qkv.new_empty((qkv.shape[0], kv_size))


def _partial(qkv, q_size, kv_size):
    out = qkv.new_empty((qkv.shape[0], 2), dtype=torch.float32)
    run_partial(qkv, q_size, kv_size, out)
    return out


def _apply(qkv, sums, q_weight, k_weight, q_size, kv_size, eps, world_size):
    q, k = _empty(qkv, q_size, kv_size)
    run_apply(qkv, sums, q_weight, k_weight, q_size, kv_size, eps, world_size, q, k)
    return q, k


def _apply_inplace(qkv, sums, q_weight, k_weight, q_size, kv_size, eps, world_size):
    run_apply(qkv, sums, q_weight, k_weight, q_size, kv_size, eps, world_size, *views(qkv, q_size, kv_size))


def _fused(qkv, q_weight, k_weight, q_size, kv_size, eps, world_size, group):
    q, k = _empty(qkv, q_size, kv_size)
    _run_fused(qkv, q_weight, k_weight, q_size, kv_size, eps, world_size, group, q, k)
    return q, k


def _fused_inplace(qkv, q_weight, k_weight, q_size, kv_size, eps, world_size, group):
    _run_fused(qkv, q_weight, k_weight, q_size, kv_size, eps, world_size, group, *views(qkv, q_size, kv_size))


_SHAPE = "int q_size, int kv_size, float eps, int world_size"
define(
    "qk_rms_partial(Tensor qkv, int q_size, int kv_size) -> Tensor",
    lambda qkv, q_size, kv_size: qkv.new_empty((qkv.shape[0], 2), dtype=torch.float32),
    _partial,
)
define(
    f"qk_rms_apply(Tensor qkv, Tensor sums, Tensor q_weight, Tensor k_weight, {_SHAPE}) -> (Tensor, Tensor)",
    lambda qkv, sums, q_weight, k_weight, q_size, kv_size, *_: _empty(qkv, q_size, kv_size),
    _apply,
)
define(
    f"qk_rms_apply_(Tensor(a!) qkv, Tensor sums, Tensor q_weight, Tensor k_weight, {_SHAPE}) -> ()",
    lambda *_: None,
    _apply_inplace,
)
define(
    f"allreduce_qk_rms(Tensor qkv, Tensor q_weight, Tensor k_weight, {_SHAPE}, str group) -> (Tensor, Tensor)",
    lambda qkv, q_weight, k_weight, q_size, kv_size, *_: _empty(qkv, q_size, kv_size),
    _fused,
)
define(
    f"allreduce_qk_rms_(Tensor(a!) qkv, Tensor q_weight, Tensor k_weight, {_SHAPE}, str group) -> ()",
    lambda *_: None,
    _fused_inplace,
)
