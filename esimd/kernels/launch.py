"""Launch shapes as formulas: case in, kernel name, grid and template instance out. Needs no torch.

A token tile (1 token, or up to 4) shares the weights of an expert that several of its tokens picked.

    up    group = (tile, slot of the tile, block of columns), 8 threads: `split` of them share the K range of one pair
          of rows (gate and up row of one column; two columns where not gated)
    down  group = (-, tile, 4 rows of w2), `split` threads share the slots of the tile
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xpu_moe.esimd.kernels import abi

TILE_TOKENS = 4
UP_LOCAL = 8
UP_STEP = 256  # weights a row and iteration, where that divides the row; else one scale group
DOWN_STEP = 128
DOWN_ROWS = 4
DOWN_SPLIT = 8
RMS_LOCAL = 8
ROUTE_LOCAL = 8
RMS_BLOCK = 128
MAX_TOKENS = 64
GROUP_SIZES = (32, 64, 128)
# Arc Pro B70: 32 Xe cores of 8 vector engines with 8 threads each (facts: 256 vector engines x 8).
HARDWARE_THREADS = 2048


@dataclass(frozen=True)
class Launch:
    """One kernel submission: `groups` x `local` threads in SYCL order (last dimension fastest)."""

    kernel: str  # name in the SPIR-V, without the "__sycl_kernel_" in front
    module: str  # file stem of the SPIR-V
    groups: tuple[int, int, int]
    local: tuple[int, int, int]
    split: int = 1

    @property
    def global_size(self) -> tuple[int, int, int]:
        a, b, c = (g * n for g, n in zip(self.groups, self.local))
        return a, b, c

    @property
    def threads(self) -> int:
        return math.prod(self.global_size)


def unsupported(
    dtype: str, tokens: int, hidden_size: int, intermediate_size: int, num_experts: int, top_k: int, group_size: int
) -> str | None:
    """Why the MoE kernels cannot serve the case, None where they can."""
    if dtype not in abi.DTYPES:
        return f"activations are {dtype}, wanted {' or '.join(abi.DTYPES)}"
    if group_size not in GROUP_SIZES:
        return f"group_size {group_size}, wanted {', '.join(map(str, GROUP_SIZES))}"
    for name, value in (("hidden_size", hidden_size), ("intermediate_size", intermediate_size)):
        if value <= 0 or value % group_size:
            return f"{name} {value} is not a multiple of group_size {group_size}"
    if not 1 <= top_k <= abi.MAX_TOP_K:
        return f"top_k {top_k}, wanted 1..{abi.MAX_TOP_K}"
    if tokens > MAX_TOKENS:
        return f"{tokens} tokens, wanted at most {MAX_TOKENS}: a decode kernel, use the grouped GEMM"
    if num_experts * intermediate_size * hidden_size // 16 >= 1 << 31:
        return f"{num_experts} experts of {intermediate_size} x {hidden_size}: row offsets leave 32 bits"
    if num_experts < 1:
        return f"num_experts {num_experts}, wanted at least 1"
    return None


def hidden_position(column: int) -> int:
    """Where up puts column i of the hidden vector: in each block of 32, even columns, then odd ones."""
    return (column & ~31) | (column & 1) << 4 | (column & 31) >> 1


def hidden_bytes(tokens: int, top_k: int, intermediate_size: int) -> int:
    """Size of the `hidden` workspace; the logits form needs 8 * tokens * top_k bytes more for weights and ids."""
    return 4 * tokens * top_k * intermediate_size


def _tile(tokens: int) -> int:
    return 1 if tokens == 1 else TILE_TOKENS


def _step(size: int, group_size: int, wide: int) -> int:
    """Weights a row and iteration: `wide` where it divides the row, else one scale group."""
    return wide if size % wide == 0 else group_size


def up_split(slots: int, pairs: int, steps: int) -> int:
    """Threads that share one pair of rows: the fewest that fill whole waves of the card's threads to 90 %."""
    best, best_fill = 1, 0.0
    for split in (1, 2, 4, 8):
        threads = slots * pairs * split
        fill = threads / (HARDWARE_THREADS * math.ceil(threads / HARDWARE_THREADS))
        if split <= steps and fill > best_fill:
            best, best_fill = split, fill
        if best_fill >= 0.9:
            break
    return best


def up(
    dtype: str, tokens: int, hidden_size: int, intermediate_size: int, top_k: int, group_size: int, gated: bool = True
) -> Launch:
    """`moe_u4_up`, fed by ids or by logits alike."""
    tile, step = _tile(tokens), _step(hidden_size, group_size, UP_STEP)
    pairs = intermediate_size if gated else intermediate_size // 2
    split = up_split(min(tokens, tile) * top_k, pairs, hidden_size // step)
    name = f"{abi.DTYPES[dtype]}_g{group_size}"
    return Launch(
        f"moe_u4_up_{name}_k{step}_t{tile}",
        f"moe_u4_{name}",
        (math.ceil(tokens / tile), tile * top_k, pairs * split // UP_LOCAL),
        (1, 1, UP_LOCAL),
        split,
    )


def down(dtype: str, tokens: int, hidden_size: int, intermediate_size: int, top_k: int, group_size: int) -> Launch:
    """`moe_u4_down`."""
    tile, step = _tile(tokens), _step(intermediate_size, group_size, DOWN_STEP)
    split = min(DOWN_SPLIT, 1 << (tile * top_k - 1).bit_length())
    name = f"{abi.DTYPES[dtype]}_g{group_size}"
    return Launch(
        f"moe_u4_down_{name}_k{step}_t{tile}",
        f"moe_u4_{name}",
        (1, math.ceil(tokens / tile), hidden_size // DOWN_ROWS),
        (1, 1, split),
        split,
    )


def route(tokens: int) -> Launch:
    """`route_sigmoid_topk`: one group a token."""
    return Launch("route_sigmoid_topk", "route_sigmoid_topk", (1, 1, tokens), (1, 1, ROUTE_LOCAL))


def qk_partial(dtype: str, tokens: int) -> Launch:
    """`qk_rms_partial`: one group of 8 threads for a row's Q, one for its K."""
    name = abi.DTYPES[dtype]
    return Launch(f"qk_rms_partial_{name}", f"qk_rms_{name}", (1, tokens, 2), (1, 1, RMS_LOCAL))


def qk_apply(dtype: str, tokens: int, q_size: int, kv_size: int) -> Launch:
    """`qk_rms_apply`: one thread for each 128 elements of Q, then of K."""
    blocks = math.ceil(q_size / RMS_BLOCK) + math.ceil(kv_size / RMS_BLOCK)
    name = abi.DTYPES[dtype]
    return Launch(f"qk_rms_apply_{name}", f"qk_rms_{name}", (1, tokens, blocks), (1, 1, 1))


def flags(
    *, nibble: str = "u4", ids_64: bool = False, scale_dtype: str = "float16", activation: str = "silu",
    weights_dtype: str = "float32", logits_dtype: str = "float32", bias_dtype: str = "float32",
    logits: bool = False, bias: bool = False, renormalize: bool = True,
) -> int:  # fmt: skip
    """The `flags` word; `logits` and `bias`: that pointer is given. Raises ValueError for a name no kernel knows."""
    gated = {"silu": abi.GATED, "relu2": abi.GATED | abi.RELU2, "relu2_no_mul": abi.RELU2, "silu_no_mul": 0}
    try:
        word = {"u4": 0, "s4": abi.S4}[nibble] | gated[activation]
        word |= {"float16": 0, "bfloat16": abi.SCALE_BF16}[scale_dtype]
        word |= abi.KINDS[weights_dtype] << abi.WEIGHTS_SHIFT | abi.KINDS[logits_dtype] << abi.LOGITS_SHIFT
        word |= abi.KINDS[bias_dtype] << abi.BIAS_SHIFT
    except KeyError as error:
        raise ValueError(f"flags: no kernel knows {error.args[0]!r}") from None
    word |= abi.WITH_LOGITS * logits | abi.WITH_BIAS * bias
    return word | abi.IDS_64 * ids_64 | abi.RENORMALIZE * renormalize
