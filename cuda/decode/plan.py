"""Sizes of a compiled variant: how the rows of W2 are dealt out, how deep the ring is, how much shared memory it takes.

Pure arithmetic, so that `supports` answers on a machine without a GPU; shape.cuh, block.cuh and one_token.cuh compute
what follows from the defines and assert what they rely on.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

BUCKETS = (1, 4, 16, 64)  # MAX_M of the compiled variants
MAX_TOKENS = BUCKETS[-1]
CONSUMERS = 12  # warps that compute (16 and 24 were tried: docs/cuda.md)
FINISHERS = 3
FEW_FINISHERS = 1  # where columns are tokens
GATHERERS = {4: 6, 8: 2}  # bits -> warps that gather h, where columns are tokens
HIDDEN_BUFFERS = {4: 3, 8: 2}  # bits -> stages for which h is gathered ahead, where they fit
ONE_TOKEN_PIECES = 4  # of a unit, each with a barrier, where they can be made (u4_one.cuh)
PARTIALS = 2  # buffers between consumers and finishers
DEPTH = 2  # stages under way at once: more, and what is needed first arrives later (docs/cuda.md)
BLOCK_SHARED = 227 << 10  # bytes of shared memory one block may take on sm_90
MAX_STAGES = 12  # a consumer warp makes each stage's barrier
STATE_HEADER = 256  # bytes of the state before its buffers (state.cuh)
STRICT = False  # True for compute-sanitizer's racecheck: every lane arrives at barriers (work.cuh)
_ALIGN = 128
# Numbers of types in the defines SCALE and ROUTE_WEIGHT.
DTYPES = {"bfloat16": 0, "float16": 1, "float32": 2}


@dataclass(frozen=True)
class Shape:
    """What a variant is compiled for. `bits` 4 or 8; `scale` and `route_weight` are dtype names."""

    bits: int
    hidden_size: int
    intermediate_size: int
    num_experts: int
    top_k: int
    group_size: int
    activation: str
    gated: bool
    dtype: str
    scale: str
    route_weight: str
    wide_ids: bool


@dataclass(frozen=True)
class Plan:
    """A variant: its sizes (as in shape.cuh), its defines, its shared memory and its state."""

    shape: Shape
    max_tokens: int
    blocks: int
    consumers: int
    row_blocks: int
    stage_experts: int
    stage_bytes: int
    stages: int
    depth: int
    hidden_buffers: int
    shared_bytes: int

    @property
    def finishers(self) -> int:
        if self.max_tokens == 1:
            return 1
        return FEW_FINISHERS if columns_are_tokens(self.max_tokens) else FINISHERS

    @property
    def gatherers(self) -> int:
        return GATHERERS[self.shape.bits] if columns_are_tokens(self.max_tokens) and self.max_tokens > 1 else 0

    @property
    def threads(self) -> int:
        return (self.consumers + 1 + self.finishers + self.gatherers) * 32  # one: the producer

    @property
    def state_half(self) -> int:
        """Bytes of one of the two hand-off buffers: a row of h a route, or, if gathered, for each (expert, token)."""
        rows = routes = self.max_tokens * self.shape.top_k
        if self.gatherers:
            rows = min(routes, self.shape.num_experts) * self.max_tokens
        return rows * self.shape.intermediate_size * 2

    @property
    def state_bytes(self) -> int:
        return STATE_HEADER + 2 * self.state_half

    def defines(self) -> dict[str, int]:
        """-D names of shape.cuh and their values."""
        s = self.shape
        return {
            "H": s.hidden_size, "I": s.intermediate_size, "E": s.num_experts, "TOP_K": s.top_k,
            "GROUP": s.group_size, "MAX_M": self.max_tokens, "BLOCKS": self.blocks, "GATED": int(s.gated),
            "RELU2": int(s.activation.startswith("relu2")), "HALF_X": int(s.dtype == "float16"),
            "SCALE": DTYPES[s.scale], "ROUTE_WEIGHT": DTYPES[s.route_weight], "ID_64": int(s.wide_ids),
            "CONSUMERS": self.consumers, "ROW_BLOCKS": self.row_blocks, "STAGE_EXPERTS": self.stage_experts,
            "STAGE_BYTES": self.stage_bytes, "STAGES": self.stages, "DEPTH": self.depth,
            "PARTIALS": PARTIALS, "FINISHERS": self.finishers, "GATHERERS": self.gatherers,
            "HIDDEN_BUFFERS": self.hidden_buffers, "STRICT": int(STRICT), "ONE_TOKEN_PIECES": ONE_TOKEN_PIECES,
            "SHARED_ROOM": self.shared_bytes - self.stages * self.stage_bytes,
        }  # fmt: skip


def columns_are_tokens(max_tokens: int) -> bool:
    """COLUMN_IS_TOKEN of shape.cuh: the columns of every product are the tokens, whatever an expert's own are."""
    return max_tokens <= 4


class NoPlan(ValueError):
    """The kernel cannot be built for these sizes; the message says which size and why."""


def bucket(tokens: int) -> int:
    """The smallest compiled MAX_M that holds `tokens`. NoPlan above the largest."""
    for size in BUCKETS:
        if tokens <= size:
            return size
    raise NoPlan(f"tokens {tokens}: the decode kernel takes at most {MAX_TOKENS}")


@cache
def plan(shape: Shape, max_tokens: int, blocks: int) -> Plan:
    """The variant for up to `max_tokens` (one of BUCKETS) on a chip with `blocks` multiprocessors. Raises NoPlan.

    That for one token exists where a block's share of the weights fits into shared memory, else the next one serves.
    """
    _check(shape)
    if max_tokens == 1:
        found = _one_token(shape, blocks)
        if found:
            return found
        max_tokens = BUCKETS[1]
    inter_blocks = shape.intermediate_size // 128
    row_blocks = _row_blocks(shape, blocks)
    unit = _unit_bytes(shape)
    most = _stage_experts(inter_blocks, row_blocks * _row_block_bytes(shape), unit)
    # Where shared memory is short, fewer stages of h are held (lists hold none), then fewer experts make a stage.
    held_at_most = HIDDEN_BUFFERS[shape.bits]
    buffers = range(held_at_most, 0, -1) if columns_are_tokens(max_tokens) else (held_at_most,)
    for experts, held in itertools.product(range(most, 0, -1), buffers):
        stage = _round(max(unit, experts * row_blocks * _row_block_bytes(shape)))
        fixed = _round(_shared_struct(shape, max_tokens, row_blocks, experts, held))
        stages = min(MAX_STAGES, (BLOCK_SHARED - fixed) // stage)
        if stages >= 2:
            return Plan(
                shape, max_tokens, blocks, CONSUMERS, row_blocks, stage_experts=experts, stage_bytes=stage,
                stages=stages, depth=min(stages, DEPTH), hidden_buffers=held, shared_bytes=stages * stage + fixed,
            )  # fmt: skip
    raise NoPlan(
        f"hidden_size {shape.hidden_size}, intermediate_size {shape.intermediate_size}: two stages of {stage} "
        f"bytes and the {fixed} bytes behind them exceed the {BLOCK_SHARED} bytes of shared memory"
    )


def _one_token(shape: Shape, blocks: int) -> Plan | None:
    """one_token.cuh: room for all units and stages that a block may have, so its ring is one stage of them all."""
    inter_blocks = shape.intermediate_size // 128
    row_blocks = _row_blocks(shape, blocks)
    expert = row_blocks * _row_block_bytes(shape)
    unit = _unit_bytes(shape) + (16 * 64 if shape.bits == 8 else 0)  # UNIT_ROW of fp8_block.cuh
    experts = _one_token_experts(inter_blocks, shape.top_k)
    units = -(-shape.top_k * (shape.intermediate_size // (8 if shape.gated else 16)) // blocks)
    stages = -(-shape.top_k // experts)
    weights = units * _round(unit) + stages * _round(experts * expert)
    parts = (
        8 * ((ONE_TOKEN_PIECES + 1) * units + experts * stages), CONSUMERS * _x_room(shape), units * 16 * CONSUMERS * 4,
        CONSUMERS * row_blocks * 8 * 4, 2 * 4, shape.top_k * (4 + 2 + 2),
    )  # fmt: skip
    shared = _round(weights + sum(parts) + 64)
    if shared > BLOCK_SHARED:
        return None
    return Plan(
        shape, 1, blocks, CONSUMERS, row_blocks, stage_experts=experts, stage_bytes=weights, stages=1,
        depth=DEPTH, hidden_buffers=1, shared_bytes=shared,
    )  # fmt: skip


def _x_room(shape: Shape) -> int:
    """X_ROOM: what x takes in shared memory for a warp, where there is one token."""
    own = -(-shape.hidden_size // 128 // CONSUMERS)
    return own * 256 + _up(own * 4, 16) if shape.bits == 4 else 16


def _stage_experts(inter_blocks: int, expert_bytes: int, unit_bytes: int) -> int:
    """How many experts' slices of W2 make a stage: most warps busy, and no larger than a unit of W13 where possible."""
    fitting = [n for n in range(1, CONSUMERS // inter_blocks + 1) if n == 1 or n * expert_bytes <= unit_bytes]
    return max(fitting, key=lambda n: (CONSUMERS // (n * inter_blocks) * n, n))


def _one_token_experts(inter_blocks: int, top_k: int) -> int:
    """As `_stage_experts`, for one token: a barrier for each expert makes a stage's size of little account."""
    return min(CONSUMERS // inter_blocks, top_k)


def _check(shape: Shape) -> None:
    for name, size in (("hidden_size", shape.hidden_size), ("intermediate_size", shape.intermediate_size)):
        if size % 128 or size <= 0:
            raise NoPlan(f"{name} {size}: wanted a multiple of 128")
    if shape.intermediate_size > 128 * CONSUMERS:
        raise NoPlan(f"intermediate_size {shape.intermediate_size}: at most {128 * CONSUMERS}, 128 a warp")
    threads = (CONSUMERS + 1 + FINISHERS) * 32
    if shape.num_experts > threads:
        raise NoPlan(f"num_experts {shape.num_experts}: at most {threads}, one a thread")
    if shape.group_size not in (32, 64, 128):
        raise NoPlan(f"group_size {shape.group_size}: wanted 32, 64 or 128")
    if not 1 <= shape.top_k <= 32:
        raise NoPlan(f"top_k {shape.top_k}: wanted 1 to 32")


def _scale_bytes(shape: Shape) -> int:
    return 4 if shape.scale == "float32" else 2


def _unit_bytes(shape: Shape) -> int:
    """16 rows of W13 with their scales."""
    rows = 16 * shape.hidden_size * shape.bits // 8
    return rows if shape.bits == 8 else rows + 16 * shape.hidden_size // shape.group_size * _scale_bytes(shape)


def _row_blocks(shape: Shape, blocks: int) -> int:
    """The most 8-row blocks of W2 that one thread block owns."""
    return -(-shape.hidden_size // 8 // blocks)


def _row_block_bytes(shape: Shape) -> int:
    """8 rows of W2 with their scales."""
    rows = 8 * shape.intermediate_size * shape.bits // 8
    return rows if shape.bits == 8 else rows + 8 * shape.intermediate_size // shape.group_size * _scale_bytes(shape)


def _hidden_bytes(shape: Shape, max_tokens: int) -> int:
    """Rows of h for an expert of a stage (block.cuh); lists of tokens keep none in shared memory."""
    steps = _up(shape.intermediate_size // 128 * 4, 16) if shape.bits == 4 else 16
    row = shape.intermediate_size * 2 + steps
    return max_tokens * row if columns_are_tokens(max_tokens) else 0


def _shared_struct(shape: Shape, max_tokens: int, row_blocks: int, experts_of_stage: int, buffers: int) -> int:
    """At least sizeof(Shared) of block.cuh: every array that a variant may use, and room for padding."""
    routes, experts = max_tokens * shape.top_k, shape.num_experts
    distinct = min(routes, experts)
    lists = distinct * 4 * (1 + max_tokens) if columns_are_tokens(max_tokens) else routes * 6 + (distinct + 1) * 4
    parts = (
        8 * (2 * MAX_STAGES + 2 * PARTIALS + 2 * buffers + 1),
        buffers * (experts_of_stage * _hidden_bytes(shape, max_tokens) + 16),
        PARTIALS * CONSUMERS * 129 * 4, CONSUMERS * max_tokens * row_blocks * 8 * 4,
        experts * 8, routes * (4 + 4), 32 * 4, distinct * 2, lists, 4 * 33, 2 * 4,
    )  # fmt: skip
    return sum(parts) + 64


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _round(size: int) -> int:
    return _up(size, _ALIGN)
