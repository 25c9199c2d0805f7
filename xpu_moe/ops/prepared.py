"""`PreparedInputs`: what one launch of `route_and_quant_fp8` hands to a block-scaled FP8 mixture of experts.

The five tensors belong together, and so do four facts about them that no tensor carries: how the scales lie in
memory, whether they are powers of two, how many columns of x are valid and how many values share a scale. A consumer
asks `refusal` (or `require`) before it reads: a size, a layout or a scale format that does not fit is an error with
the field's name, never a slow path.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from xpu_moe.ops import checks

ROW_MAJOR = "row_major"
COLUMN_MAJOR = "column_major"
SCALE_LAYOUTS = (ROW_MAJOR, COLUMN_MAJOR)
GROUP_SIZE = 128
TMA_ALIGNMENT = 4  # fp32 scales in the 16 bytes to which the copy engine aligns a column


def aligned_tokens(tokens: int) -> int:
    """Distance in elements between two columns of column-major scales: M rounded up to whole 16 bytes."""
    return -(-tokens // TMA_ALIGNMENT) * TMA_ALIGNMENT


def empty_scale(tokens: int, groups: int, layout: str, device: torch.device | str) -> torch.Tensor:
    """An uninitialised scale tensor, shape [M, groups], whose strides are those of `layout`."""
    if layout == ROW_MAJOR:
        return torch.empty(tokens, groups, dtype=torch.float32, device=device)
    checks.one_of("layout", layout, SCALE_LAYOUTS)
    columns = torch.empty(groups, aligned_tokens(tokens), dtype=torch.float32, device=device)
    return columns[:, :tokens].t()


@dataclass(frozen=True)
class PreparedInputs:
    """Routes and quantised activations of M tokens.

    topk_weights float32 [M, top_k]; topk_ids int32 [M, top_k]; x_q e4m3 [M, padded hidden size], a multiple of
    `group_size`, columns from `hidden_size` on are 0; x_scale float32 [M, padded / group_size], x = x_q * x_scale.
    `scale_layout` is row_major (contiguous) or column_major (a column a group, columns 16-byte aligned: what vLLM and
    DeepGEMM read); `scale_ue8m0`: every scale is a power of two. Checks itself: BadArgument.
    """

    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    x_q: torch.Tensor
    x_scale: torch.Tensor
    hidden_size: int
    scale_layout: str = ROW_MAJOR
    scale_ue8m0: bool = False
    group_size: int = GROUP_SIZE

    def __post_init__(self) -> None:
        for name in ("topk_weights", "topk_ids", "x_q", "x_scale"):
            checks.rank(name, getattr(self, name), 2)
        checks.whole("hidden_size", self.hidden_size)
        checks.dtype("topk_weights", self.topk_weights, torch.float32)
        checks.dtype("topk_ids", self.topk_ids, torch.int32)
        checks.dtype("x_q", self.x_q, torch.float8_e4m3fn)
        checks.dtype("x_scale", self.x_scale, torch.float32)
        checks.require(self.group_size == GROUP_SIZE, "group_size", self.group_size, GROUP_SIZE)
        tokens, padded = self.x_q.shape
        wanted = -(-self.hidden_size // self.group_size) * self.group_size
        checks.require(self.hidden_size >= 1, "hidden_size", self.hidden_size, "at least 1")
        checks.require(
            padded == wanted, "x_q.shape[1]", padded,
            f"{wanted}, hidden_size {self.hidden_size} rounded up to whole groups of {self.group_size}",
        )  # fmt: skip
        checks.shape("x_scale", self.x_scale, (tokens, padded // self.group_size))
        checks.require(self.topk_ids.shape[0] == tokens, "topk_ids.shape[0]", self.topk_ids.shape[0], f"{tokens}, M")
        checks.shape("topk_weights", self.topk_weights, tuple(self.topk_ids.shape))
        checks.one_of("scale_layout", self.scale_layout, SCALE_LAYOUTS)
        checks.flag("scale_ue8m0", self.scale_ue8m0)
        self._check_strides(tokens)
        checks.same_device({name: getattr(self, name) for name in ("x_q", "x_scale", "topk_ids", "topk_weights")})

    def _check_strides(self, tokens: int) -> None:
        if self.x_scale.numel() == 0:
            return
        got = tuple(self.x_scale.stride())
        groups = self.x_scale.shape[1]
        wanted = (groups, 1) if self.scale_layout == ROW_MAJOR else (1, aligned_tokens(tokens))
        # The stride of a dimension of length 1 means nothing.
        same = all(size == 1 or g == w for size, g, w in zip(self.x_scale.shape, got, wanted))
        checks.require(same, "x_scale.stride()", got, f"{wanted}, {self.scale_layout}")
        checks.require(self.x_q.stride(1) == 1, "x_q.stride(1)", self.x_q.stride(1), 1)

    @property
    def tokens(self) -> int:
        """M."""
        return self.x_q.shape[0]

    @property
    def padded_hidden_size(self) -> int:
        """Columns of x_q."""
        return self.x_q.shape[1]

    @property
    def top_k(self) -> int:
        return self.topk_ids.shape[1]

    def refusal(
        self,
        *,
        hidden_size: int,
        tokens: int | None = None,
        scale_layouts: tuple[str, ...] = SCALE_LAYOUTS,
        scale_ue8m0: bool | None = None,
    ) -> str:
        """Why a consumer of these sizes and formats cannot take them ("" where it can).

        `scale_ue8m0` None takes both formats, True only powers of two (the reverse is also a refusal: a consumer that
        was set up for free scales must not be fed rounded ones unawares).
        """
        if self.hidden_size != hidden_size:
            return f"hidden_size: prepared for {self.hidden_size}, the weights have {hidden_size}"
        if self.padded_hidden_size != hidden_size:
            return (
                f"x_q.shape[1]: prepared with {self.padded_hidden_size} padded columns, the weights have "
                f"{hidden_size}; pad the weights likewise or prepare without padding"
            )
        if tokens is not None and self.tokens != tokens:
            return f"x_q.shape[0]: prepared for {self.tokens} tokens, the call has {tokens}"
        if self.scale_layout not in scale_layouts:
            return f"scale_layout: prepared {self.scale_layout}, wanted {' or '.join(scale_layouts)}"
        if scale_ue8m0 is not None and self.scale_ue8m0 != scale_ue8m0:
            return f"scale_ue8m0: prepared {self.scale_ue8m0}, wanted {scale_ue8m0}"
        return ""

    def require(self, **wanted: object) -> None:
        """Raise BadArgument with `refusal`'s reason."""
        reason = self.refusal(**wanted)  # type: ignore[arg-type]
        if reason:
            raise checks.BadArgument(f"prepared: {reason}")

    def dequantized(self) -> torch.Tensor:
        """x as float32 [M, hidden_size]: for references and tests."""
        wide = self.x_q.float().unflatten(1, (-1, self.group_size)) * self.x_scale.unsqueeze(-1)
        return wide.flatten(1)[:, : self.hidden_size]
