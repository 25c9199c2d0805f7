"""Inputs and outputs of the soak run: cells of random size and stride in arenas whose every other byte is a canary.

A cell is what one launch gets: M rows of x, their scales (FP8), routes, and rows of `out`. Around them and between
their rows lie NaN (x, scales, weights), valid ids (so that a route read from there meets a weight that is NaN), or one
bit pattern (`out`, which is NaN as well). Arenas are raw integers: bits are compared, not values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.cuda.decode.soak_layers import Layer, torch_type

PATTERN = 0x7FE5  # NaN in bf16 and in fp16
TWINS = 4  # cells of a block that repeat another cell's inputs: their results must have the same bits
STYLES = ("distinct", "any", "two hot", "one")  # which experts a call's tokens choose
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Cell:
    """Offsets and strides in elements."""

    tokens: int
    x_at: int
    x_stride: int
    scale_at: int
    scale_strides: tuple[int, int]
    routes_at: int
    out_at: int
    out_stride: int
    style: int
    base: int  # the hot expert
    invalid: float  # part of the routes that have an id out of range
    dead: float  # part of the tokens that have no valid route
    zero: float  # part of the routes that have weight 0
    signed: bool
    size: float  # of x
    twin: int  # the cell whose inputs it shares, or -1


def pick(rng: np.random.Generator, among: Sequence[Any]) -> Any:
    return among[int(rng.integers(len(among)))]


def draw_tokens(rng: np.random.Generator) -> int:
    """1 to 64, the small ones more often."""
    low, high = pick(rng, ((1, 4), (1, 4), (1, 4), (1, 4), (5, 16), (5, 16), (5, 16), (17, 64), (17, 64)))
    return int(rng.integers(low, high + 1))


class _Room:
    """Places in an arena, one behind the other, with a gap between."""

    def __init__(self) -> None:
        self.end = 64

    def take(self, size: int, gap: int, unit: int) -> int:
        at = -(-(self.end + gap) // unit) * unit
        self.end = at + size
        return at


class Cells:
    """The cells of one layer in one block of the run, on the layer's device."""

    def __init__(self, layer: Layer, rng: np.random.Generator, slots: int) -> None:
        self.layer, v = layer, layer.variant
        self.x_type = torch_type(v.dtype) if v.bits == 4 else torch.float8_e4m3fn
        self.cells: list[Cell] = []
        rooms = {name: _Room() for name in ("x", "scale", "routes", "out")}
        for slot in range(slots):
            self.cells.append(self._place(rng, rooms, slot >= slots - TWINS))
        self._index(slots - TWINS)
        element = torch.empty(0, dtype=self.x_type).element_size()
        weight = torch_type(v.route_weight)
        self.ids_type = torch.int64 if v.wide_ids else torch.int32
        self.x = self._arena(rooms["x"], _RAW[element])
        self.scale = self._arena(rooms["scale"], torch.int32)
        self.ids = self._arena(rooms["routes"], self.ids_type)
        self.weights = self._arena(rooms["routes"], _RAW[weight.itemsize])
        self.out = self._arena(rooms["out"], torch.int16)
        kinds = (self.x_type, torch.float32, weight, torch_type(v.dtype))
        self.typed = [a.view(kind) for a, kind in zip((self.x, self.scale, self.weights, self.out), kinds)]

    def _arena(self, room: _Room, kind: torch.dtype) -> torch.Tensor:
        return torch.empty(room.end + 256, dtype=kind, device=self.layer.device)

    def _place(self, rng: np.random.Generator, rooms: dict[str, _Room], twin: bool) -> Cell:
        v = self.layer.variant
        unit = 8 if v.bits == 4 else 16  # elements in 16 bytes
        source = int(rng.integers(len(self.cells))) if twin else -1
        tokens = self.cells[source].tokens if twin else draw_tokens(rng)
        out_stride = v.hidden + pick(rng, (0, 0, 1, 8, 77))
        out_at = rooms["out"].take((tokens - 1) * out_stride + v.hidden, int(rng.integers(8, 200)), 1)
        if twin:
            known = {**self.cells[source].__dict__, "out_at": out_at, "out_stride": out_stride, "twin": source}
            return Cell(**known)
        stride = v.hidden + unit * pick(rng, (0, 0, 1, 4, v.hidden // unit))
        x_at = rooms["x"].take((tokens - 1) * stride + v.hidden + 1, int(rng.integers(64, 512)), unit)
        x_at += int(rng.random() < 0.05)  # not on 16 bytes: copied by the launch
        groups = v.hidden // 128
        across = -(-tokens // 4) * 4
        return Cell(
            tokens=tokens, x_at=x_at, x_stride=stride,
            scale_at=rooms["scale"].take(across * groups, int(rng.integers(8, 64)), 4),
            scale_strides=(groups, 1) if rng.random() < 0.5 else (1, across),
            routes_at=rooms["routes"].take(tokens * v.top_k, int(rng.integers(8, 64)), 1),
            out_at=out_at, out_stride=out_stride,
            style=pick(rng, (0, 0, 0, 0, 0, 1, 1, 2, 2, 3)), base=int(rng.integers(v.experts)),
            invalid=pick(rng, (0.0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 0.9, 1.0)), dead=pick(rng, (0.0, 0.0, 0.0, 0.0, 0.3)),
            zero=pick(rng, (0.0, 0.0, 0.0, 0.0, 0.3)), signed=pick(rng, (False, False, False, True)),
            size=float(2 ** rng.uniform(-1.5, 1.5)), twin=-1,
        )  # fmt: skip

    def _index(self, own: int) -> None:
        """Row by row, on the device: where x, scales, routes and out begin, and what the cell asks for."""
        sizes = [cell.tokens for cell in self.cells]
        self.rows = sum(sizes)
        self.own_rows = sum(sizes[:own])  # twins come last, and have no inputs of their own
        row = np.concatenate([np.arange(size) for size in sizes])

        def spread(values, kind=np.int64) -> np.ndarray:
            return np.repeat(np.asarray(values, dtype=kind), sizes)

        v, cells = self.layer.variant, self.cells
        whole = np.stack(
            [
                spread(range(len(cells))),
                spread([c.x_at for c in cells]) + row * spread([c.x_stride for c in cells]),
                spread([c.scale_at for c in cells]) + row * spread([c.scale_strides[0] for c in cells]),
                spread([c.scale_strides[1] for c in cells]),
                spread([c.routes_at for c in cells]) + row * v.top_k,
                spread([c.out_at for c in cells]) + row * spread([c.out_stride for c in cells]),
                spread([c.style for c in cells]),
                spread([c.base for c in cells]),
            ]
        )
        asked = ("invalid", "dead", "zero", "signed", "size")
        parts = np.stack([spread([getattr(c, name) for c in cells], np.float32) for name in asked])
        device = self.layer.device
        first = np.cumsum([0, *sizes])
        pairs = [
            (first[i] + np.arange(c.tokens), first[c.twin] + np.arange(c.tokens))
            for i, c in enumerate(cells)
            if c.twin >= 0
        ]
        twins = np.stack([np.concatenate([pair[side] for pair in pairs]) for side in (0, 1)])
        self.of, x, scale, step, routes, out, self.style, self.base = torch.from_numpy(whole).to(device)
        self.asked = torch.from_numpy(parts).to(device).unsqueeze(-1)
        self.twins = torch.from_numpy(twins).to(device)
        self.twin_of = torch.tensor([max(c.twin, 0) for c in cells], device=device)

        def across(begin: torch.Tensor, width: int) -> torch.Tensor:
            return begin.unsqueeze(1) + torch.arange(width, device=device)

        self.x_index, self.out_index = across(x, v.hidden), across(out, v.hidden)
        self.routes_index = across(routes, v.top_k)
        self.scale_index = scale.unsqueeze(1) + step.unsqueeze(1) * torch.arange(v.hidden // 128, device=device)

    def fill(self, seed: int) -> None:
        """Fresh inputs in the same places, canaries around them, `out` poisoned."""
        v, own, device = self.layer.variant, self.own_rows, self.layer.device
        draw = torch.Generator(device).manual_seed(seed)
        invalid, dead, zero, signed, size = self.asked[:, :own]

        def rand(*shape: int) -> torch.Tensor:
            return torch.rand(shape, generator=draw, device=device)

        values = torch.randn(own, v.hidden, generator=draw, device=device)
        values.mul_(1 + 15 * (rand(own, v.hidden) < 0.002)).mul_(rand(own, 1) > 0.03)  # outliers, and tokens that are 0
        if v.bits == 4:
            values.mul_(size)
        else:
            values.mul_(16).clamp_(-448, 448)  # above, torch makes NaN
            self.scale.fill_(-1)
            scales = (rand(own, v.hidden // 128) + 0.5) * size / 16
            self.scale[self.scale_index[:own]] = scales.view(torch.int32)
        self.x.fill_(0xFF if v.bits == 8 else -1)
        self.x[self.x_index[:own]] = values.to(self.x_type).view(self.x.dtype)
        self.ids.random_(0, v.experts, generator=draw)
        ids = self._ids(draw, rand, invalid, dead)
        self.ids[self.routes_index[:own]] = ids.to(self.ids_type)
        weights = (rand(own, v.top_k) * 0.95 + 0.05) * (rand(own, v.top_k) >= zero)
        weights = torch.where((signed > 0) & (rand(own, v.top_k) < 0.5), -weights, weights)
        nowhere = (ids < 0) | (ids >= v.experts)
        weights = torch.where(nowhere & (rand(own, 1) < 0.5), float("nan"), weights)  # of no account
        self.weights.fill_(-1)
        self.weights[self.routes_index[:own]] = weights.to(torch_type(v.route_weight)).view(self.weights.dtype)
        self.out.fill_(PATTERN)
        self.before = [arena.clone() for arena in (self.x, self.scale, self.ids, self.weights)]

    def _ids(self, draw: torch.Generator, rand, invalid: torch.Tensor, dead: torch.Tensor) -> torch.Tensor:
        v, own, device = self.layer.variant, self.own_rows, self.layer.device

        def some(below: int) -> torch.Tensor:
            return torch.randint(0, below, (own, v.top_k), generator=draw, device=device)

        style, base = self.style[:own].unsqueeze(1), self.base[:own].unsqueeze(1)
        # Different experts for the routes of a token, where there are enough.
        distinct = rand(own, v.experts).argsort(1)[:, torch.arange(v.top_k, device=device) % v.experts]
        ids = torch.where(style == 0, distinct, some(v.experts))
        ids = torch.where(style == 2, (base + some(2)) % v.experts, ids)
        ids = torch.where(style == 3, base, ids)
        wrong = [-1, v.experts, v.experts + 1, v.experts + 31, 2**31 - 1, -(2**31), 1 << 30]
        if v.wide_ids:
            wrong += [1 << 32, (1 << 32) + 1, -(1 << 32), 1 << 62, -(1 << 63)]
        out_of_range = torch.tensor(wrong, device=device)[some(len(wrong))]
        return torch.where((rand(own, v.top_k) < invalid) | (rand(own, 1) < dead), out_of_range, ids)

    def arguments(self, slot: int) -> tuple[Any, ...]:
        """x, x_scale (None for 4-bit weights), topk_weights, topk_ids, out of a cell, as the kernel gets them."""
        v, cell = self.layer.variant, self.cells[slot]
        x, scale, weights, out = self.typed
        rows, routes = (cell.tokens, v.hidden), ((cell.tokens, v.top_k), (v.top_k, 1), cell.routes_at)
        groups = (cell.tokens, v.hidden // 128)
        return (
            x.as_strided(rows, (cell.x_stride, 1), cell.x_at),
            scale.as_strided(groups, cell.scale_strides, cell.scale_at) if v.bits == 8 else None,
            weights.as_strided(*routes), self.ids.as_strided(*routes),
            out.as_strided(rows, (cell.out_stride, 1), cell.out_at),
        )  # fmt: skip

    def inputs(self, rows: slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x and weights in float32 and ids in int64, [rows, ...], from what was filled in."""
        x, scale, ids, weights = self.before
        wide = x[self.x_index[rows]].view(self.x_type).float()
        if self.layer.variant.bits == 8:
            wide *= scale[self.scale_index[rows]].view(torch.float32).repeat_interleave(128, 1)
        chosen = weights[self.routes_index[rows]].view(torch_type(self.layer.variant.route_weight)).float()
        return wide, chosen, ids[self.routes_index[rows]].long()

    def check(self, ran: torch.Tensor) -> torch.Tensor:
        """float64 [4, slots], nothing read back: relative error, rows without a route that are not 0, rows that differ
        from the twin's, and (first slot) touched canaries. `ran` bool [slots]: the others must still be poisoned."""
        slots, experts = len(self.cells), self.layer.variant.experts
        x, weights, ids = self.inputs()
        wanted = self.layer.reference(x, weights, ids)
        bits = self.out[self.out_index]
        got = bits.view(torch_type(self.layer.variant.dtype)).float()

        def of_cells(values: torch.Tensor, rows: torch.Tensor | slice = slice(None)) -> torch.Tensor:
            return torch.zeros(slots, dtype=torch.float64, device=values.device).index_add_(
                0, self.of[rows], values.double()
            )

        off, size = of_cells((got - wanted).square().sum(1)).sqrt(), of_cells(wanted.square().sum(1)).sqrt()
        error = torch.where(off == 0, 0.0, off / size).nan_to_num(nan=float("inf"), posinf=float("inf"))
        live = ((ids >= 0) & (ids < experts) & (weights != 0)).any(1)
        nonzero = of_cells(~live & (got != 0).any(1))
        mine, others = self.twins
        differ = of_cells((bits[mine] != bits[others]).any(1), mine) * ran[self.twin_of]
        out = self.out.clone()
        out[self.out_index] = torch.where(ran[self.of].unsqueeze(1), PATTERN, bits)
        touched = (out != PATTERN).sum()
        for arena, before in zip((self.x, self.scale, self.ids, self.weights), self.before):
            touched = touched + (arena != before).sum()
        canaries = torch.zeros_like(error)
        canaries[0] = touched
        return torch.stack((torch.where(ran, error, 0.0), nonzero * ran, differ * ran, canaries))

    def first_touched(self, ran: list[bool]) -> int:
        """The first element of the arena of `out`, outside of the rows of those that `ran`, that is no canary any more;
        -1 where it is another arena's. Reads back: for the report of a mismatch."""
        out = self.out.clone()
        rows = torch.tensor(ran, device=out.device)[self.of]
        out[self.out_index[rows]] = PATTERN
        places = (out != PATTERN).nonzero()
        return int(places[0]) if len(places) else -1
