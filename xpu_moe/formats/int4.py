"""The canonical INT4 layout of one MoE layer ("n_major"), and what keeps it honest.

    w13        uint8 [E, 2I, H/2]        gate rows 0..I-1, then up; low nibble = even k
    w13_scale  fp16  [E, 2I, H/group]
    w2         uint8 [E, H, I/2]
    w2_scale   fp16  [E, H, I/group]

`nibble` is explicit: "u4" (value = nibble - 8, as AutoRound and GPTQ symmetric store it) or "s4" (two's complement, as
vllm-xpu-kernels' grouped GEMM reads it). One is the other XOR 0x88, byte by byte, in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from xpu_moe.formats.quantization import GROUP_SIZES, UnsupportedCheckpoint

FLIP = 0x88


@dataclass(frozen=True)
class Int4MoeWeights:
    """One layer's expert weights, checked when made. `layout` names the order of the bytes ("n_major" = canonical);
    a backend's `prepare` may return another order in the same shapes. `gated` says whether w13 holds gate rows."""

    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    nibble: str
    group_size: int
    layout: str = "n_major"
    gated: bool = True

    def __post_init__(self) -> None:
        _want(self.nibble in ("u4", "s4"), "nibble", repr(self.nibble), "u4 or s4")
        _want(self.group_size in GROUP_SIZES, "group_size", self.group_size, " or ".join(map(str, GROUP_SIZES)))
        for name in ("w13", "w13_scale", "w2", "w2_scale"):
            tensor = getattr(self, name)
            _want(tensor.dim() == 3, f"{name}.dim()", tensor.dim(), "3")
            kinds = (torch.float16, torch.bfloat16, torch.float32) if name.endswith("scale") else (torch.uint8,)
            _want(tensor.dtype in kinds, f"{name}.dtype", tensor.dtype, " or ".join(map(str, kinds)))
        experts, hidden, inter = self.num_experts, self.hidden_size, self.intermediate_size
        rows = (2 if self.gated else 1) * inter
        for name, wanted in (
            ("w13", (experts, rows, hidden // 2)),
            ("w13_scale", (experts, rows, hidden // self.group_size)),
            ("w2", (experts, hidden, inter // 2)),
            ("w2_scale", (experts, hidden, inter // self.group_size)),
        ):
            _want(tuple(getattr(self, name).shape) == wanted, f"{name}.shape", tuple(getattr(self, name).shape), wanted)
        for name, size in (("hidden_size", hidden), ("intermediate_size", inter)):
            _want(size % self.group_size == 0, name, size, f"a multiple of group_size {self.group_size}")

    @property
    def num_experts(self) -> int:
        return self.w13.shape[0]

    @property
    def hidden_size(self) -> int:
        return self.w2.shape[1]

    @property
    def intermediate_size(self) -> int:
        """Of this rank."""
        return self.w2.shape[2] * 2

    @property
    def nbytes(self) -> int:
        tensors = (self.w13, self.w13_scale, self.w2, self.w2_scale)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def as_nibble(self, nibble: str) -> Int4MoeWeights:
        """The same weights with the other nibble kind, converted in place: the storage stays, the old value is void."""
        if nibble == self.nibble:
            return self
        _want(nibble in ("u4", "s4"), "nibble", repr(nibble), "u4 or s4")
        for tensor in (self.w13, self.w2):
            tensor.bitwise_xor_(FLIP)
        return replace(self, nibble=nibble)


def empty(
    num_experts: int,
    hidden_size: int,
    intermediate_size: int,
    group_size: int,
    *,
    nibble: str = "u4",
    gated: bool = True,
    device: torch.device | str = "cpu",
) -> Int4MoeWeights:
    """Uninitialised canonical tensors of a layer (`intermediate_size` per rank)."""
    rows = (2 if gated else 1) * intermediate_size

    def tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return Int4MoeWeights(
        tensor(torch.uint8, num_experts, rows, hidden_size // 2),
        tensor(torch.float16, num_experts, rows, hidden_size // group_size),
        tensor(torch.uint8, num_experts, hidden_size, intermediate_size // 2),
        tensor(torch.float16, num_experts, hidden_size, intermediate_size // group_size),
        nibble,
        group_size,
        gated=gated,
    )


def _want(condition: bool, name: str, got: object, wanted: object) -> None:
    if not condition:
        raise UnsupportedCheckpoint(f"{name}: got {got}, wanted {wanted}")
