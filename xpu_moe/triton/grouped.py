"""The grouped products as backends: what serves every M, any group size, and both orders of 4-bit weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from xpu_moe.ops import checks
from xpu_moe.ops.activation import is_gated
from xpu_moe.ops.contract import Case, Support
from xpu_moe.triton import toolchain

CHUNK = 2048  # tokens at a time: bounds the workspace, and the weights are read from cache or compute binds by then
_INT4, _FP8_BLOCK, _FP8_TENSOR = 0, 1, 2
_SCHEMES = {"int4": _INT4, "fp8_block": _FP8_BLOCK, "fp8_tensor": _FP8_TENSOR}
_BLOCK = 256


@dataclass(frozen=True)
class Tiles:
    """Rows of routes, columns and depth of a tile, warps, pipeline stages; `joined`: gate and up rows take turns in one
    product of 2n columns."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    joined: bool = False

    def down_columns(self, hidden: int) -> int:
        """Columns of a tile of the second product."""
        return 2 * self.n if self.joined and hidden % (2 * self.n) == 0 else self.n


def tiles(scheme: str, tokens: int, top_k: int, experts: int, group: int, device: str) -> Tiles:
    """By the mean number of routes an expert; BK is a whole scale group, so that scales leave the inner product.

    On XPU half a group of 128, and as many rows as fit the registers (docs/esimd.md has the figures). Joined there:
    Intel's Triton gives every warp all columns where a loop has two products, and each would decode all 4-bit weights.
    """
    rows = tokens * top_k / max(1, experts)
    depth = group if scheme == "int4" else 128
    m = 16 if rows <= 16 else 32 if rows <= 48 else 64
    if device == "xpu" and scheme != "int4" and m == 64:
        return Tiles(m, 64, 64, 8, 2)
    if device == "xpu":
        return Tiles(min(m, 32), 64, min(depth, 64), 4, 2, joined=True)
    return Tiles(m, 64, depth, 4, 3 if depth < 128 or m < 64 else 2)


@dataclass(frozen=True)
class Layout:
    """Where the pieces of the workspace begin, in bytes; `total` is its size."""

    counts: int
    tile_end: int
    ranks: int
    slots: int
    h: int
    y: int
    total: int
    tile_count: int


def layout(tokens: int, top_k: int, experts: int, hidden: int, inter: int, block_m: int, item: int) -> Layout:
    """Pieces for one chunk of `tokens`; `item` bytes an element of h and y."""
    routes = tokens * top_k
    count = min(routes, experts + routes // block_m)
    at, starts = 0, []
    for size in (
        4 * experts,
        4 * experts,
        4 * routes,
        4 * count * block_m,
        routes * inter * item,
        routes * hidden * item,
    ):
        starts.append(at)
        at += -(-size // 256) * 256
    counts, tile_end, ranks, slots, h, y = starts
    return Layout(counts, tile_end, ranks, slots, h, y, at, count)


def workspace_bytes(case: Case) -> int:
    """For the largest chunk of any M within the case's range."""
    item = 4 if case.dtype == "float32" else 2
    most = 0
    for tokens in {min(case.tokens, CHUNK), *(t for t in (1, 16, 256, 1024) if t <= case.tokens)}:
        m = tiles(case.scheme, tokens, case.top_k, case.num_experts, case.group_size, case.device).m
        for block in {16, m}:
            size = layout(
                tokens, case.top_k, case.num_experts, case.hidden_size, case.intermediate_size, block, item
            ).total
            most = max(most, size)
    return most


class _Grouped:
    """What the three schemes share."""

    name = "triton_grouped"
    op = ""
    scheme = ""
    layouts: tuple[str, ...] = ("n_major",)

    def supports(self, case: Case) -> Support:
        reason = self._refusal(case)
        if reason:
            return Support(False, reason)
        return Support(True, f"Triton {toolchain.triton_version()} grouped products, any M")

    def _refusal(self, case: Case) -> str:
        reason = toolchain.refusal(case)
        if reason:
            return reason
        if case.layout not in self.layouts:
            return f"layout {case.layout!r}: it reads {' and '.join(self.layouts)}"
        for field, size in (("hidden_size", case.hidden_size), ("intermediate_size", case.intermediate_size)):
            if size % 64:
                return f"{field} {size}: wanted a multiple of 64, the width of a tile"
        return ""

    def prepare(self, weights, case: Case):
        """Reads the canonical layout (and what a decode kernel made of it): nothing to do."""
        return weights

    def workspace(self, case: Case) -> int:
        return workspace_bytes(case)

    def _run(
        self, x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, activation, out, workspace,
        group=128, packed=False, signed=False,
    ):  # fmt: skip
        for name, tensor in (("w13", w13), ("w13_scale", w13_scale), ("w2", w2), ("w2_scale", w2_scale)):
            checks.contiguous(name, tensor)
        x = x if x.stride(1) == 1 else x.contiguous()  # the kernels step over rows only
        tokens = x.shape[0]
        for start in range(0, tokens, CHUNK):
            part = slice(start, min(start + CHUNK, tokens))
            self._chunk(
                x[part], None if x_scale is None else x_scale[part], w13, w13_scale, w2, w2_scale, topk_weights[part],
                topk_ids[part], activation, out[part], workspace, group, packed, signed,
            )  # fmt: skip
        return out

    def _chunk(
        self, x, xs, w13, w13_scale, w2, w2_scale, weights, ids, activation, out, workspace, group, packed, signed
    ) -> None:
        import triton

        from xpu_moe.triton import kernels

        tokens, hidden = x.shape
        experts, top_k, gated = w13.shape[0], ids.shape[1], is_gated(activation)
        inter = w13.shape[1] // (2 if gated else 1)
        routes, scheme = tokens * top_k, _SCHEMES[self.scheme]
        tile = tiles(self.scheme, tokens, top_k, experts, group, x.device.type)
        joined = tile.joined and gated and not packed
        dtype = out.dtype
        plan = layout(tokens, top_k, experts, hidden, inter, tile.m, dtype.itemsize)
        if workspace is None or workspace.numel() < plan.total:
            workspace = torch.empty(plan.total, dtype=torch.uint8, device=x.device)

        def piece(start: int, count: int, kind: torch.dtype) -> torch.Tensor:
            return workspace[start : start + count * kind.itemsize].view(kind)

        counts = piece(plan.counts, experts, torch.int32).zero_()
        tile_end = piece(plan.tile_end, experts, torch.int32)
        ranks = piece(plan.ranks, routes, torch.int32)
        slots = piece(plan.slots, plan.tile_count * tile.m, torch.int32).fill_(-1)
        h, y = piece(plan.h, routes * inter, dtype), piece(plan.y, routes * hidden, dtype)
        padded = triton.next_power_of_2(experts)
        ids = ids.contiguous()
        grid = (triton.cdiv(routes, _BLOCK),)
        kernels.count_routes[grid](ids, counts, ranks, routes, experts, BLOCK=_BLOCK)
        kernels.scan_tiles[(1,)](counts, tile_end, experts, BM=tile.m, EP=padded)
        kernels.place_routes[grid](ids, ranks, tile_end, slots, routes, BM=tile.m, BLOCK=_BLOCK)
        if scheme == _INT4:
            w13, w2 = w13.view(torch.int32), w2.view(torch.int32)
        launch = {"num_warps": tile.warps, "num_stages": tile.stages}
        # The interpreter multiplies bf16 as the integers that hold it.
        dot = _triton_dtype(dtype if x.is_cuda or x.device.type == "xpu" else torch.float32)
        native = xs is not None and x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 9)
        kernels.up[(inter // tile.n, plan.tile_count)](
            x, x if xs is None else xs, w13, w13_scale, slots, tile_end, h, experts, x.stride(0),
            0 if xs is None else xs.stride(0), 0 if xs is None else xs.stride(1), tokens,
            HIDDEN=hidden, INTER=inter, TOP_K=top_k, GROUP=group, BM=tile.m, BN=tile.n, BK=tile.k, EP=padded,
            SCHEME=scheme, GATED=gated, RELU2=activation.startswith("relu2"), PACKED=packed, SIGNED=signed,
            PREPARED=xs is not None, NATIVE=native, DOT=dot, JOINED=joined, **launch,
        )  # fmt: skip
        columns = tile.down_columns(hidden)
        kernels.down[(hidden // columns, plan.tile_count)](
            h, w2, w2_scale, weights.contiguous(), slots, tile_end, y, experts, routes,
            HIDDEN=hidden, INTER=inter, GROUP=group, BM=tile.m, BN=columns, BK=tile.k, EP=padded, SCHEME=scheme,
            PACKED=packed, SIGNED=signed, DOT=dot, **launch,
        )  # fmt: skip
        block = min(1024, triton.next_power_of_2(hidden))
        kernels.combine[(tokens, triton.cdiv(hidden, block))](
            y, ranks, out, out.stride(0), HIDDEN=hidden, TOP_K=top_k, BLOCK=block
        )


def _triton_dtype(dtype: torch.dtype):
    import triton.language as tl

    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[dtype]


class U4(_Grouped):
    """4-bit weights, canonical or in the decode kernels' order."""

    op = "moe_u4"
    scheme = "int4"
    layouts = ("n_major", "sm90_mma")

    def _refusal(self, case: Case) -> str:
        reason = super()._refusal(case)
        if not reason and case.layout == "sm90_mma" and case.nibble != "u4":
            return f"nibble {case.nibble!r}: layout sm90_mma holds u4"
        return reason

    def run(
        self, x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, nibble, group_size, activation, layout, out,
        workspace=None,
    ):  # fmt: skip
        return self._run(
            x, None, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, activation=activation, out=out,
            workspace=workspace, group=group_size, packed=layout == "sm90_mma", signed=nibble == "s4",
        )  # fmt: skip


class Fp8Block(_Grouped):
    """e4m3 weights, a scale for 128 x 128; activations prepared (e4m3, a scale for 128) or plain."""

    op = "moe_fp8_block"
    scheme = "fp8_block"

    def _refusal(self, case: Case) -> str:
        reason = super()._refusal(case)
        for field, size in (("hidden_size", case.hidden_size), ("intermediate_size", case.intermediate_size)):
            if not reason and size % 128:
                return f"{field} {size}: wanted a multiple of the scale block, 128"
        return reason

    def run(
        self, x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, *, activation, layout, out,
        workspace=None,
    ):  # fmt: skip
        return self._run(
            x, x_scale, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, activation=activation, out=out,
            workspace=workspace,
        )  # fmt: skip


class Fp8Tensor(_Grouped):
    """e4m3 weights, one scale an expert; x plain (this kernel ignores the activation scales)."""

    op = "moe_fp8_tensor"
    scheme = "fp8_tensor"

    def _refusal(self, case: Case) -> str:
        reason = super()._refusal(case)
        for field, size in (("hidden_size", case.hidden_size), ("intermediate_size", case.intermediate_size)):
            if not reason and size % 128:
                return f"{field} {size}: wanted a multiple of 128, the depth of a tile"
        return reason

    def run(self, x, weights, topk_weights, topk_ids, *, out, workspace=None):
        return self._run(
            x, None, weights.w13, weights.w13_scale, weights.w2, weights.w2_scale, topk_weights, topk_ids,
            activation=weights.activation, out=out, workspace=workspace,
        )  # fmt: skip
