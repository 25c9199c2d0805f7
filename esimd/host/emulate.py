"""The ESIMD kernels on the CPU as functions of arrays: what `probe moe --emulate` and the tests call.

Arrays are numpy's or torch CPU tensors (any mix); bfloat16 is a torch tensor, or a numpy array of uint16 bit patterns
with `dtype="bfloat16"`. Results are float32 numpy arrays of values that the kernel rounded to the activations' dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xpu_moe.esimd.host import library
from xpu_moe.esimd.host.library import Traffic, Watch
from xpu_moe.esimd.kernels import launch
from xpu_moe.ops.activation import is_gated

ALIGNMENT = 64
_POISON = 0xA5


@dataclass(frozen=True)
class Emulated:
    """What a run gave: `output` as float32, `bits` as written, `weight_bytes` loaded and `floor_bytes`, the least."""

    output: np.ndarray
    bits: np.ndarray
    weight_bytes: int
    floor_bytes: int
    traffic: dict[str, Traffic]
    threads: dict[str, int]
    watches: dict[str, Watch] = field(default_factory=dict)
    topk_weights: np.ndarray | None = None
    topk_ids: np.ndarray | None = None

    @property
    def traffic_ratio(self) -> float:
        """Weight and scale bytes loaded over those of the distinct experts, once."""
        return self.weight_bytes / self.floor_bytes if self.floor_bytes else float(self.weight_bytes > 0) + 1.0


def _array(value: Any) -> tuple[np.ndarray, str]:
    """(numpy array, dtype name); a bfloat16 tensor becomes its uint16 patterns."""
    if isinstance(value, np.ndarray):
        return value, str(value.dtype)
    name = str(value.dtype).removeprefix("torch.")
    if name == "bfloat16":
        import torch

        return value.contiguous().view(torch.int16).numpy().view(np.uint16), name
    return value.numpy(), name


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An aligned array full of poison: what is not written is seen."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.full(size + ALIGNMENT, _POISON, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned(array: np.ndarray) -> np.ndarray:
    """The array itself where it is contiguous and 16-byte aligned, else a copy that is."""
    if array.flags.c_contiguous and array.ctypes.data % 16 == 0:
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def _apart(rows: np.ndarray, gap: int) -> np.ndarray:
    """[M, N] -> aligned [M, N + gap], poison behind each row."""
    if not gap:
        return aligned(rows)
    wide = empty((rows.shape[0], rows.shape[1] + gap), rows.dtype)
    wide[:, : rows.shape[1]] = rows
    return wide


def as_float32(bits: np.ndarray, dtype: str) -> np.ndarray:
    """uint16 patterns of float16 or bfloat16 -> float32."""
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def moe_u4(
    x: Any, w13: Any, w13_scale: Any, w2: Any, w2_scale: Any, topk_weights: Any = None, topk_ids: Any = None, *,
    nibble: str = "u4", group_size: int, activation: str = "silu", logits: Any = None, bias: Any = None, top_k: int = 0,
    renormalize: bool = True, route_scale: float = 1.0, dtype: str | None = None, count: bool = True, seed: int = 0,
    row_gap: int = 0,
) -> Emulated:  # fmt: skip
    """`moe_u4` by the ESIMD source on the host: routed by topk_weights and topk_ids, or by `logits` (with `top_k`).

    Shapes as in xpu_moe.ops.moe_u4. `count` False leaves the byte counters out (faster). `row_gap`: poisoned elements
    behind each row of x and of the output. Raises ValueError with the reason for a case that the kernels do not serve.
    """
    x, found = _array(x)
    dtype = dtype or found
    (w13, _), (w2, _) = _array(w13), _array(w2)
    (w13_scale, scale_dtype), (w2_scale, _) = _array(w13_scale), _array(w2_scale)
    scale_dtype = "bfloat16" if scale_dtype == "uint16" else scale_dtype
    tokens, hidden_size = x.shape
    experts, inter = w13.shape[0], w2.shape[2] * 2
    routed = logits is None
    flags: dict[str, Any] = {
        "nibble": nibble,
        "activation": activation,
        "scale_dtype": scale_dtype,
        "renormalize": renormalize,
    }
    if routed:
        (weights, weights_dtype), (ids, ids_dtype) = _array(topk_weights), _array(topk_ids)
        weights, ids, top_k = aligned(weights), aligned(ids), ids.shape[1]
        router: dict[str, Any] = {
            "logits": None,
            "bias": None,
            "topk_ids": ids,
            "route_weights": None,
            "route_ids": None,
        }
        up_flags = launch.flags(**flags, ids_64=ids_dtype == "int64")
        down_flags = launch.flags(**flags, ids_64=ids_dtype == "int64", weights_dtype=weights_dtype)
    else:
        logits, logits_dtype = _array(logits)
        bias, bias_dtype = (None, "float32") if bias is None else _array(bias)
        weights, ids = empty((tokens, top_k), np.float32), empty((tokens, top_k), np.int32)
        router = {"logits": aligned(logits), "bias": bias, "topk_ids": None, "route_weights": weights, "route_ids": ids}
        up_flags = launch.flags(
            **flags, logits=True, bias=bias is not None, logits_dtype=logits_dtype, bias_dtype=bias_dtype
        )
        down_flags = launch.flags(**flags)
    reason = launch.unsupported(dtype, tokens, hidden_size, inter, experts, top_k, group_size)
    if reason:
        raise ValueError(reason)

    hidden = empty((tokens, top_k, inter), np.float32)
    out = empty((tokens, hidden_size + row_gap), np.uint16)
    arrays = {"w13": w13, "w13_scale": w13_scale, "w2": w2, "w2_scale": w2_scale}
    arrays = {name: aligned(array) for name, array in arrays.items()}
    arrays |= {"x": _apart(x, row_gap), "hidden": hidden, "out": out}
    watches = {n: Watch(n, a) for n, a in arrays.items()} if count else {}
    traffic, threads = {}, {}
    if tokens:
        sizes = {
            "tokens": tokens, "hidden_size": hidden_size, "intermediate_size": inter, "num_experts": experts,
            "top_k": top_k,
        }  # fmt: skip
        up = launch.up(dtype, tokens, hidden_size, inter, top_k, group_size, is_gated(activation))
        down = launch.down(dtype, tokens, hidden_size, inter, top_k, group_size)
        values = arrays | sizes | router
        up_more = {"x_stride": hidden_size + row_gap, "flags": up_flags, "route_scale": route_scale}
        down_more = {
            "topk_ids": ids, "topk_weights": weights, "out_stride": hidden_size + row_gap, "flags": down_flags,
        }  # fmt: skip
        for family, shape, more in (("moe_u4_up", up, up_more), ("moe_u4_down", down, down_more)):
            values |= more | {"split": shape.split}
            traffic[family] = library.run(shape, family, values, tuple(watches.values()), seed)
            threads[family] = shape.threads
    used = np.unique(ids[(ids >= 0) & (ids < experts)]) if tokens else np.zeros(0, int)
    weight_names = ("w13", "w13_scale", "w2", "w2_scale")
    per_expert = sum(arrays[n].nbytes // experts for n in weight_names)
    return Emulated(
        output=as_float32(np.ascontiguousarray(out[:, :hidden_size]), dtype),
        bits=out[:, :hidden_size],
        weight_bytes=sum(watches[n].loaded for n in weight_names) if count else 0,
        floor_bytes=len(used) * per_expert,
        traffic=traffic,
        threads=threads,
        watches=watches,
        topk_weights=weights,
        topk_ids=ids,
    )


def route_sigmoid_topk(
    logits: Any, bias: Any, top_k: int, *, renormalize: bool = True, scale: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(weights float32 [M, top_k], ids int32 [M, top_k]) by the ESIMD source."""
    logits, logits_dtype = _array(logits)
    bias, bias_dtype = (None, "float32") if bias is None else _array(bias)
    tokens, experts = logits.shape
    weights, ids = empty((tokens, top_k), np.float32), empty((tokens, top_k), np.int32)
    flags = launch.flags(
        logits=True, bias=bias is not None, logits_dtype=logits_dtype, bias_dtype=bias_dtype, renormalize=renormalize
    )
    if tokens:
        values = {
            "logits": aligned(logits), "bias": bias, "weights": weights, "ids": ids, "tokens": tokens,
            "num_experts": experts, "top_k": top_k, "logits_stride": experts, "flags": flags, "route_scale": scale,
        }  # fmt: skip
        library.run(launch.route(tokens), "route_sigmoid_topk", values, seed=seed)
    return weights, ids


def qk_rms_partial(qkv: Any, q_size: int, kv_size: int, *, dtype: str | None = None, seed: int = 0) -> np.ndarray:
    """Sums of squares float32 [M, 2] by the ESIMD source."""
    qkv, found = _array(qkv)
    tokens = qkv.shape[0]
    sums = empty((tokens, 2), np.float32)
    values = {
        "qkv": qkv, "sums": sums, "tokens": tokens, "q_size": q_size, "kv_size": kv_size,
        "qkv_stride": qkv.strides[0] // qkv.itemsize,
    }  # fmt: skip
    library.run(launch.qk_partial(dtype or found, tokens), "qk_rms_partial", values, seed=seed)
    return sums


def qk_rms_apply(
    qkv: Any, sums: Any, q_weight: Any, k_weight: Any, q_size: int, kv_size: int, eps: float, world_size: int, *,
    dtype: str | None = None, inplace: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(q [M, q_size], k [M, kv_size]) as float32 values, by the ESIMD source; `inplace` writes into qkv as well."""
    qkv, found = _array(qkv)
    dtype = dtype or found
    (q_weight, weights_dtype), (k_weight, _) = _array(q_weight), _array(k_weight)
    tokens, stride = qkv.shape[0], qkv.strides[0] // qkv.itemsize
    q, k = empty((tokens, q_size), np.uint16), empty((tokens, kv_size), np.uint16)
    if inplace:
        q, k = qkv[:, :q_size], qkv[:, q_size : q_size + kv_size]
    values = {
        "qkv": qkv, "sums": _array(sums)[0], "q_weight": q_weight, "k_weight": k_weight, "q_out": q, "k_out": k,
        "tokens": tokens, "q_size": q_size, "kv_size": kv_size, "qkv_stride": stride,
        "q_out_stride": stride if inplace else q_size, "k_out_stride": stride if inplace else kv_size,
        "world_size": world_size, "eps": eps, "flags": launch.flags(weights_dtype=weights_dtype),
    }  # fmt: skip
    library.run(launch.qk_apply(dtype, tokens, q_size, kv_size), "qk_rms_apply", values)
    return as_float32(q.view(np.uint16), dtype), as_float32(k.view(np.uint16), dtype)
