"""Layers of the soak run: weights between strips of NaN, the same dequantised to float32, the call of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from xpu_moe.cuda.decode import layout
from xpu_moe.cuda.decode.backends import MoeFp8Block, MoeU4
from xpu_moe.cuda.decode.plan import Shape
from xpu_moe.formats.int4 import Int4MoeWeights
from xpu_moe.ops.activation import is_gated, w13_rows
from xpu_moe.ops.contract import Case

STRIP = 4096  # bytes of 0xFF before and behind every tensor of weights: NaN in each of their floating-point types


@dataclass(frozen=True)
class Variant:
    """A layer small enough to be checked in full. Names as in `plan.Shape`."""

    bits: int
    hidden: int
    inter: int
    experts: int
    top_k: int
    activation: str = "silu"
    group: int = 128
    dtype: str = "bfloat16"
    scale: str = "float16"
    route_weight: str = "float32"
    wide_ids: bool = False

    def __str__(self) -> str:
        kind = f"u4 g{self.group} {self.scale}" if self.bits == 4 else "fp8"
        ids = "int64" if self.wide_ids else "int32"
        return (
            f"{kind} H{self.hidden} I{self.inter} E{self.experts} k{self.top_k} {self.activation} {self.dtype} "
            f"weights {self.route_weight} ids {ids}"
        )

    def shape(self) -> Shape:
        return Shape(
            self.bits, self.hidden, self.inter, self.experts, self.top_k, self.group, self.activation,
            is_gated(self.activation), self.dtype, self.scale if self.bits == 4 else "float32", self.route_weight,
            self.wide_ids,
        )  # fmt: skip

    def case(self, tokens: int) -> Case:
        u4 = self.bits == 4
        return Case(
            "moe_u4" if u4 else "moe_fp8_block", "cuda", "sm_90", self.dtype, tokens, 0, self.hidden, self.inter,
            self.experts, self.top_k, self.group, "u4" if u4 else "", self.activation, "int4" if u4 else "fp8_block",
            layout.NAME if u4 else layout.CANONICAL, prepared=not u4, weights_dtype=self.route_weight,
        )  # fmt: skip


# Every path of the kernel at sizes of a test: a lane a route (M <= 4 and at most 32 routes), a block sorting (top_k 9
# and 12, and every M > 4), fewer 8-row blocks of W2 than multiprocessors (H up to 1024), two, three or four of them a
# thread block (H 2048, 2176, 4096, on 132 multiprocessors), two or three blocks of k a warp, I that leaves warps
# without work (640), two stages in the ring, E below top_k, E no power of two, one token in pieces of units (H 1536).
VARIANTS = (
    Variant(4, 256, 128, 8, 2),
    Variant(8, 256, 128, 8, 2),
    Variant(4, 512, 384, 32, 8),
    Variant(8, 512, 384, 32, 8),
    Variant(4, 128, 128, 4, 1, group=32, dtype="float16", scale="bfloat16", wide_ids=True),
    Variant(8, 128, 128, 4, 1, "relu2_no_mul", route_weight="bfloat16", wide_ids=True),
    Variant(4, 384, 256, 16, 3, "relu2", group=64, scale="float32", route_weight="bfloat16"),
    Variant(8, 384, 256, 24, 3, "relu2"),
    Variant(4, 256, 384, 16, 5, "relu2_no_mul", dtype="float16", route_weight="float16", wide_ids=True),
    Variant(8, 256, 384, 16, 9),
    Variant(4, 512, 128, 32, 4, "silu_no_mul", group=64, scale="bfloat16"),
    Variant(4, 128, 256, 4, 8),
    Variant(4, 384, 384, 24, 6, "relu2", group=32, dtype="float16", scale="float32"),
    Variant(4, 256, 256, 32, 12),
    Variant(4, 2176, 256, 8, 4),
    Variant(8, 2176, 128, 8, 3),
    Variant(4, 2048, 640, 8, 4),
    Variant(8, 2048, 640, 8, 4),
    Variant(4, 4096, 256, 4, 2),
    Variant(4, 1536, 384, 8, 5),
    Variant(8, 1536, 384, 8, 5),
)


def torch_type(name: str) -> torch.dtype:
    return getattr(torch, name)


def between_strips(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(a copy of `values`, the bytes of it and of the strips on both sides)."""
    size = values.numel() * values.element_size()
    whole = torch.full((size + 2 * STRIP,), 0xFF, dtype=torch.uint8, device=values.device)
    whole[STRIP : STRIP + size].copy_(values.contiguous().view(-1).view(torch.uint8))
    return whole[STRIP : STRIP + size].view(values.dtype).view(values.shape), whole


class Layer:
    """The weights of a variant in the kernel's order, and in float32 for the reference."""

    def __init__(self, variant: Variant, seed: int, device: str) -> None:
        self.variant, self.device = variant, device
        self.gated = is_gated(variant.activation)
        self.backend = self.backend_of(variant)
        self.draw = torch.Generator(device).manual_seed(seed)
        wide13, wide2 = self._make_u4() if variant.bits == 4 else self._make_fp8()
        rows = w13_rows(variant.activation, variant.inter)
        self.wide13 = wide13.reshape(variant.experts * rows, variant.hidden).t().contiguous()
        self.wide2 = wide2.transpose(1, 2).reshape(variant.experts * variant.inter, variant.hidden).contiguous()
        self.before = [whole.clone() for whole in self.wholes]

    @staticmethod
    def backend_of(variant: Variant) -> MoeU4 | MoeFp8Block:
        return MoeU4() if variant.bits == 4 else MoeFp8Block()

    def _keep(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = [between_strips(tensor) for tensor in tensors]
        self.wholes = [whole for _, whole in pairs]
        self.tensors = tuple(tensor for tensor, _ in pairs)
        return self.tensors

    def _uniform(self, low: float, high: float, *size: int) -> torch.Tensor:
        return torch.rand(size, generator=self.draw, device=self.device) * (high - low) + low

    def _make_u4(self) -> tuple[torch.Tensor, torch.Tensor]:
        v, kind = self.variant, torch_type(self.variant.scale)
        rows = w13_rows(v.activation, v.inter)

        def bytes_(*size: int) -> torch.Tensor:
            return torch.randint(0, 256, size, generator=self.draw, device=self.device, dtype=torch.uint8)

        def scales(width: int, *size: int) -> torch.Tensor:
            unit = 4.6 * width**0.5  # 4.6: the deviation of nibble - 8, so that products are about as large as x
            return self._uniform(0.5 / unit, 1.5 / unit, *size, width // v.group).to(kind)

        w13, s13, w2, s2 = self._keep(
            bytes_(v.experts, rows, v.hidden // 2), scales(v.hidden, v.experts, rows),
            bytes_(v.experts, v.hidden, v.inter // 2), scales(v.inter, v.experts, v.hidden),
        )  # fmt: skip

        def wide(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2).float() - 8
            return codes * scale.float().repeat_interleave(v.group, -1)

        plain = wide(w13, s13), wide(w2, s2)
        layout.pack(Int4MoeWeights(w13, s13, w2, s2, "u4", v.group, gated=self.gated))  # in place
        return plain

    def _make_fp8(self) -> tuple[torch.Tensor, torch.Tensor]:
        v, rows = self.variant, w13_rows(self.variant.activation, self.variant.inter)

        def codes(*size: int) -> torch.Tensor:
            return (torch.randn(size, generator=self.draw, device=self.device) * 32).to(torch.float8_e4m3fn)

        def scales(rows: int, width: int) -> torch.Tensor:
            unit = 32 * width**0.5
            return self._uniform(0.5 / unit, 1.5 / unit, v.experts, rows // 128, width // 128)

        w13, s13, w2, s2 = self._keep(
            codes(v.experts, rows, v.hidden), scales(rows, v.hidden),
            codes(v.experts, v.hidden, v.inter), scales(v.hidden, v.inter),
        )  # fmt: skip

        def wide(weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            return weights.float() * scale.repeat_interleave(128, 1).repeat_interleave(128, 2)

        return wide(w13, s13), wide(w2, s2)

    def call(self, x, x_scale, weights, ids, out) -> Callable[[], object]:
        """One launch on these inputs, ready to be made: the backend's `run`, without the operator's checks."""
        v = self.variant
        if v.bits == 4:
            return partial(
                self.backend.run, x, *self.tensors, weights, ids, nibble="u4", group_size=v.group,
                activation=v.activation, layout=layout.NAME, out=out,
            )  # fmt: skip
        return partial(
            self.backend.run, x, x_scale, *self.tensors, weights, ids, activation=v.activation,
            layout=layout.CANONICAL, out=out,
        )  # fmt: skip

    def dense(self, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """float32 [M, E]: the sum of the weights of each expert; ids out of range are left out."""
        experts = self.variant.experts
        known = torch.where((ids >= 0) & (ids < experts), ids, experts)
        out = torch.zeros(ids.shape[0], experts + 1, device=ids.device)
        return out.scatter_add_(1, known, weights)[:, :experts]

    def reference(self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """float32 [M, H] from float32 x and weights and int64 ids: all experts for all tokens, two products."""
        v = self.variant
        both = (x @ self.wide13).view(x.shape[0], v.experts, 2 if self.gated else 1, v.inter)
        gate = both[:, :, 0]
        hidden = gate.relu().square() if v.activation.startswith("relu2") else torch.nn.functional.silu(gate)
        if self.gated:
            hidden = hidden * both[:, :, 1]
        return (hidden * self.dense(weights, ids).unsqueeze(-1)).flatten(1) @ self.wide2

    def changed(self) -> torch.Tensor:
        """How many bytes of the weights and of the strips around them differ from the first day's."""
        return sum((whole != was).sum() for whole, was in zip(self.wholes, self.before))
