"""The decode kernels as backends of `moe_u4` and `moe_fp8_block`."""

from __future__ import annotations

from functools import cache

import torch

from xpu_moe.cuda import compiler
from xpu_moe.cuda.decode import launch, layout
from xpu_moe.cuda.decode.plan import MAX_TOKENS, NoPlan, Shape, bucket, plan
from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.ops import checks
from xpu_moe.ops.activation import is_gated
from xpu_moe.ops.contract import Case, Support

ARCHITECTURES = ("sm_90",)  # where the kernels were run
_SXM = 132  # multiprocessors of H100, H200 and H800 SXM: what `supports` plans for on a machine without the card
_FLOATS = ("bfloat16", "float16")


def shape_of(case: Case, bits: int, scale: str = "float16", wide_ids: bool = False) -> Shape:
    """The compiled shape that serves a case."""
    return Shape(
        bits, case.hidden_size, case.intermediate_size, case.num_experts, case.top_k, case.group_size or 128,
        case.activation, is_gated(case.activation), case.dtype, scale, case.weights_dtype, wide_ids,
    )  # fmt: skip


@cache
def _multiprocessors() -> int:
    return torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else _SXM


def _refusal(case: Case, bits: int) -> str | None:
    if case.architecture not in ARCHITECTURES:
        return (
            f"architecture {case.architecture or 'unknown'!r}: it was made for and run on {' and '.join(ARCHITECTURES)}"
        )
    if case.dtype not in _FLOATS:
        return f"dtype {case.dtype}: the tensor cores take {' or '.join(_FLOATS)}"
    if case.tokens > MAX_TOKENS:
        return f"tokens {case.tokens}: at most {MAX_TOKENS} (above, a grouped product is faster)"
    try:
        # A case does not say what the scales are: 4 bytes take the most room.
        plan(shape_of(case, bits, "float32"), bucket(case.tokens), _multiprocessors())
    except NoPlan as error:
        return str(error)
    if not compiler.available():
        return "no NVRTC and no nvcc: the kernel cannot be compiled (torch's CUDA build brings NVRTC)"
    return None


class MoeU4:
    """4-bit weights in the order sm90_mma, M <= 64."""

    name = "cuda_u4_decode"
    op = "moe_u4"
    layout = layout.NAME

    def supports(self, case: Case) -> Support:
        reason = _refusal(case, 4)
        if reason is None and case.layout != layout.NAME:
            reason = f"layout {case.layout!r}: it reads {layout.NAME} (its `prepare` converts in place)"
        if reason is None and case.nibble != "u4":
            reason = f"nibble {case.nibble!r}: layout {layout.NAME} holds u4 (`prepare` converts s4)"
        if reason is not None:
            return Support(False, reason)
        return Support(True, "one persistent launch, W2 streamed behind W13, tensor-core dequantisation")

    def prepare(self, weights: Int4MoeWeights, case: Case) -> Int4MoeWeights:
        """Canonical -> sm90_mma in the same storage, an expert at a time; compiles the variants that `case` needs."""
        packed = layout.pack(weights)
        if packed.w13.is_cuda:
            scale = checks.dtype_name(packed.w13_scale)
            for wide in (False, True):
                launch.warm(shape_of(case, 4, scale, wide), min(case.tokens, MAX_TOKENS), packed.w13.device.index)
        return packed

    def workspace(self, case: Case) -> int:
        """None: the hand-off state must start as zeros and survive, so it is the device's own (launch.py)."""
        return 0

    def run(
        self, x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, nibble, group_size, activation, layout, out,
        workspace=None,
    ):  # fmt: skip
        shape = Shape(
            4, x.shape[1], w2.shape[2] * 2, w13.shape[0], topk_ids.shape[1], group_size, activation,
            is_gated(activation), checks.dtype_name(x), checks.dtype_name(w13_scale), checks.dtype_name(topk_weights),
            topk_ids.dtype == torch.int64,
        )  # fmt: skip
        return launch.run(shape, x, None, (w13, w13_scale, w2, w2_scale), topk_weights, topk_ids, out)


class MoeFp8Block:
    """Block-scaled FP8 weights as the checkpoint has them, prepared inputs, M <= 64."""

    name = "cuda_fp8_decode"
    op = "moe_fp8_block"

    def supports(self, case: Case) -> Support:
        reason = None if case.prepared else "prepared: False; it reads e4m3 activations and scales (PreparedInputs)"
        if reason is None and case.layout != layout.CANONICAL:
            reason = f"layout {case.layout!r}: it reads {layout.CANONICAL}"
        if reason is None:
            reason = _refusal(case, 8)
        if reason is not None:
            return Support(False, reason)
        return Support(True, "one persistent launch on prepared inputs, W2 streamed behind W13, nothing repacked")

    def prepare(self, weights, case: Case):
        """Reads the checkpoint's order: nothing moves; compiles the variants that `case` needs."""
        tensor = getattr(weights, "w13", None)
        if tensor is not None and tensor.is_cuda:
            launch.warm(shape_of(case, 8, "float32"), min(case.tokens, MAX_TOKENS), tensor.device.index)
        return weights

    def workspace(self, case: Case) -> int:
        """None: see MoeU4.workspace."""
        return 0

    def run(
        self, x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, activation, layout, out,
        workspace=None,
    ):  # fmt: skip
        shape = Shape(
            8, x.shape[1], w2.shape[2], w13.shape[0], topk_ids.shape[1], 128, activation, is_gated(activation),
            checks.dtype_name(out), "float32", checks.dtype_name(topk_weights), topk_ids.dtype == torch.int64,
        )  # fmt: skip
        return launch.run(shape, x, x_scale, (w13, w13_scale, w2, w2_scale), topk_weights, topk_ids, out)
