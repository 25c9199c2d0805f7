"""Ranks on an emulated card: every rank's arena, its calls by the backend's own host code, and what they must give."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import torch

from tests.cuda.emulator.card import Card
from tests.cuda.emulator.emulator import Counted, Memory, of
from xpu_moe.cuda.collectives import arena as arenas
from xpu_moe.cuda.collectives import launch
from xpu_moe.cuda.compiler import Program

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
_WORDS = {BF16: torch.int16, F16: torch.int16, F32: torch.int32}
_ULP = {BF16: 2**-8, F16: 2**-11, F32: 2**-21}  # of results that are rounded once more than the reference's


def any_rank(unit: Program) -> Program:
    """One build for all ranks: its stream tells a launch its rank. A rank's own build has the number in it."""
    defines = tuple((name, "((int)machine::stream())" if name == "RANK" else value) for name, value in unit.defines)
    return dataclasses.replace(unit, defines=defines)


class World:
    """`size` ranks, rank r on device (so stream) r, with slots of `slot_bytes` and the first call's number `call`."""

    def __init__(self, card: Card, size: int, slot_bytes: int = 1 << 16, *, call: int = 0, limit_ns: int = 1 << 62):
        self.card, self.size, self.first, self.calls = card, size, call, 0
        self.bytes = [
            torch.full((arenas.HEADER + arenas.SLOTS * slot_bytes,), 0xFF, dtype=torch.uint8) for _ in range(size)
        ]
        self.records = [(ctypes.c_uint64 * 8)() for _ in range(size)]
        pointers = tuple(part.data_ptr() for part in self.bytes)
        self.arenas = []
        self.memory: dict[str, Memory] = {}
        for rank, record in enumerate(self.records):
            self.bytes[rank][: arenas.HEADER] = 0
            self.bytes[rank][:8].view(torch.int64)[0] = call << 20
            at = ctypes.addressof(record)
            self.arenas.append(arenas.Arena("emulated", rank, size, rank, slot_bytes, pointers, record, at, limit_ns))
            self.memory[f"arena of rank {rank}"] = of(self.bytes[rank], True)
            self.memory[f"record of rank {rank}"] = Memory(at, 64, True, rank)
        self._checks: list[Callable[[], None]] = []
        self._kept: list[torch.Tensor] = []
        self.draw = torch.Generator().manual_seed(size)

    def tensor(self, rank: int, value: torch.Tensor, writable: bool = False, shift: int = 0) -> torch.Tensor:
        """A rank's own copy, which nobody else may touch, `shift` elements behind a multiple of 16 bytes."""
        room = torch.empty(value.numel() + shift, dtype=value.dtype)[shift:]
        made = room.view(value.shape)
        made.copy_(value)
        self._kept.append(made)
        self.memory[f"tensor {len(self._kept)} of rank {rank}"] = of(made, writable, rank)
        return made

    def synchronize(self, seed: int, **more) -> Counted:
        """Run every call made so far, side by side; then check all results and that the arenas are as before."""
        counted = self.card.synchronize(self.memory, seed, **more)
        for check in self._checks:
            check()
        self._checks.clear()
        for rank, part in enumerate(self.bytes):
            assert part[:8].view(torch.int64).item() == (self.first + self.calls) << 20, f"rank {rank}'s call number"
            assert bool((part[arenas.HEADER :] == 0xFF).all()), f"rank {rank}'s slots are not empty"
            assert self.records[rank][0] == 0
        return counted

    def _values(self, *shape: int) -> list[torch.Tensor]:
        return [torch.randn(*shape, generator=self.draw) * 4 for _ in range(self.size)]

    def all_reduce(
        self, algorithm: str, count: int, dtype: torch.dtype = BF16, *, xs: Sequence[torch.Tensor] | None = None,
        in_place: bool = False, shift: int = 0, shape: launch.Shape | None = None,
    ) -> None:  # fmt: skip
        """A call on every rank."""
        self.calls += 1
        given = [x.to(dtype) for x in (xs or self._values(count))]
        total = given[0].float()
        for x in given[1:]:
            total = total + x.float()
        outs = []
        for rank, arena in enumerate(self.arenas):
            x = self.tensor(rank, given[rank], in_place, shift)
            outs.append(x if in_place else self.tensor(rank, torch.zeros_like(x), True, shift))
            launch.all_reduce(arena, algorithm, dtype, count, shape)(x, outs[-1])
        self._checks.append(partial(exact, f"{algorithm} {count} {dtype}", outs, total.to(dtype)))

    def add_rms(self, tokens: int, hidden: int, dtype: torch.dtype = BF16, weight_dtype: torch.dtype = BF16) -> None:
        """A call on every rank."""
        self.calls += 1
        given = [x.to(dtype) for x in self._values(tokens, hidden)]
        residual, weight = self._values(tokens, hidden)[0].to(dtype), self._values(hidden)[0].to(weight_dtype)
        total = given[0].float()
        for x in given[1:]:
            total = total + x.float()
        total = total + residual.float()
        wide = total.double()
        norm = wide * (wide.square().mean(1, keepdim=True) + 1e-6).rsqrt() * weight.double()
        normed, sums = [], []
        for rank, arena in enumerate(self.arenas):
            inputs = [self.tensor(rank, t) for t in (given[rank], residual, weight)]
            normed.append(self.tensor(rank, torch.zeros_like(residual), True))
            sums.append(self.tensor(rank, torch.zeros_like(residual), True))
            call = launch.add_rms(arena, dtype, weight_dtype, tokens, hidden, 1e-6)
            call(*inputs, normed[-1], sums[-1])
        self._checks.append(partial(exact, f"add_rms {tokens} x {hidden}: sums", sums, total.to(dtype)))
        self._checks.append(partial(near, f"add_rms {tokens} x {hidden}", normed, norm, dtype))

    def qk_rms(
        self, tokens: int, q_size: int, kv_size: int, dtype: torch.dtype = BF16, weight_dtype: torch.dtype = BF16,
        *, in_place: bool = False,
    ) -> None:  # fmt: skip
        """A call on every rank; `in_place`: Q and K are written where they are read."""
        self.calls += 1
        given = [x.to(dtype) for x in self._values(tokens, q_size + 2 * kv_size)]
        parts = ((0, q_size), (q_size, q_size + kv_size))
        weights = [[w.to(weight_dtype) for w in self._values(end - start)] for start, end in parts]
        norms = []
        for (start, end), weight in zip(parts, weights):
            squares = torch.stack([x[:, start:end].double().square().sum(1, keepdim=True) for x in given])
            scale = (squares.sum(0) / ((end - start) * self.size) + 1e-6).rsqrt()
            norms.append([x[:, start:end].double() * scale * w.double() for x, w in zip(given, weight)])
        for rank, arena in enumerate(self.arenas):
            qkv = self.tensor(rank, given[rank], in_place)
            outs = [qkv[:, start:end] for start, end in parts]
            if not in_place:
                outs = [self.tensor(rank, torch.zeros(tokens, out.shape[1], dtype=dtype), True) for out in outs]
            gains = [self.tensor(rank, weight[rank]) for weight in weights]
            call = launch.qk_rms(arena, dtype, weight_dtype, tokens, q_size, kv_size, 1e-6)
            call(qkv, *gains, *outs)
            name = f"qk_rms {tokens} x ({q_size}, {kv_size}), rank {rank}"
            for out, norm in zip(outs, norms):
                self._checks.append(partial(near, name, [out], norm[rank], dtype))
            if in_place:
                rest = slice(q_size + kv_size, None)
                self._checks.append(partial(exact, name, [qkv[:, rest]], given[rank][:, rest]))


def exact(what: str, outs: Sequence[torch.Tensor], wanted: torch.Tensor) -> None:
    """Every rank has these bits (a NaN may be another NaN)."""
    for rank, out in enumerate(outs):
        words = _WORDS[out.dtype]
        differ = (out.contiguous().view(words) != wanted.contiguous().view(words)) & ~(out.isnan() & wanted.isnan())
        if bool(differ.any()):
            at = tuple(differ.nonzero()[0].tolist())
            raise AssertionError(f"{what}, rank {rank}: {list(at)} is {out[at].item()}, wanted {wanted[at].item()}")


def near(what: str, outs: Sequence[torch.Tensor], wanted: torch.Tensor, dtype: torch.dtype) -> None:
    """Every rank has the same bits, within a rounding of the float64 result."""
    exact(what, outs, outs[0])
    error = (outs[0].double() - wanted).abs() - wanted.abs() * _ULP[dtype]
    assert error.max().item() <= 1e-6, f"{what}: off by {error.max().item()}"
