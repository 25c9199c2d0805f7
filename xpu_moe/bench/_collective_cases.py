"""What `bench collectives` measures: inputs, exact checks and rivals of each collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from xpu_moe.bench._means import Means
from xpu_moe.cpu.qk_rms import reference as qk_truth
from xpu_moe.ops import qk_rms
from xpu_moe.ops.all_reduce import all_reduce
from xpu_moe.ops.all_reduce import selection as all_reduce_selection
from xpu_moe.ops.all_reduce_add_rms import all_reduce_add_rms
from xpu_moe.ops.all_reduce_add_rms import selection as add_rms_selection
from xpu_moe.ops.contract import Selection, select
from xpu_moe.ops.qk_rms import selection as qk_selection

EPS = 1e-6
HIDDEN, Q_WIDTH, K_WIDTH, HEAD = 3072, 6144, 1024, 128  # MiniMax-M2, all ranks together
Rival = Callable[[], object] | str


def fingerprint(tensors: list[torch.Tensor]) -> int:
    """A sum over the bits that notices any changed or moved value."""
    total = 0
    for tensor in tensors:
        words = tensor.contiguous().view(torch.uint8).view(-1).to(torch.int64)
        places = torch.arange(words.numel(), device=words.device) % 65521 + 1
        total = (total * 31 + int((words * places).sum())) % (1 << 61)
    return total


class Case:
    """One collective at one size."""

    name = ""
    shape = ""
    size = 0
    outputs: tuple[torch.Tensor, ...] = ()

    def call(self) -> object:
        """One call; its results are `outputs`."""
        raise NotImplementedError

    def timed(self) -> object:
        """The call that is timed: the form that serving uses."""
        return self.call()

    def fill(self, turn: int) -> None:
        """Inputs of a turn, other ones each time."""
        raise NotImplementedError

    def fill_random(self) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """Make the inputs fit to be timed."""

    def deviations(self, turn: int) -> dict[str, float]:
        """What differs from the truth of this turn."""
        raise NotImplementedError

    def shared(self) -> list[torch.Tensor]:
        """Outputs that must be the same bits on every rank."""
        return list(self.outputs)

    def rivals(self) -> dict[str, Rival]:
        raise NotImplementedError

    def selection(self) -> Selection:
        raise NotImplementedError

    def notes(self) -> dict[str, str]:
        """What a reader of the rivals' figures must know."""
        return {}


def integers(count: int, rank: int, turn: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Whole numbers in -8..8 that differ by place, rank and turn: their sums are exact in every dtype."""
    places = torch.arange(count, device=device, dtype=torch.int64)
    return ((places * 7 + rank * 13 + turn * 5) % 17 - 8).to(dtype)


def symmetric_pool(bench: Means, size: int) -> Any:
    """Torch's symmetric memory for the rival, or a sentence where there is none."""
    if bench.kind != "cuda":
        return f"not on {bench.kind}"
    try:
        import torch.distributed._symmetric_memory as symmetric

        pool = symmetric.empty(max(size, 16) // bench.dtype.itemsize, dtype=bench.dtype, device=bench.device)
        handle = symmetric.rendezvous(pool, bench.who.name)  # type: ignore[arg-type]
    except (ImportError, RuntimeError) as error:
        return f"not available: {str(error).splitlines()[0]}"
    if getattr(handle, "multicast_ptr", 0):
        raise RuntimeError("symmetric memory mapped a multicast pointer: stop, multicast must stay off")
    return pool, handle


class AllReduce(Case):
    """`all_reduce` of `size` bytes."""

    name = "all_reduce"

    def __init__(self, bench: Means, size: int, pool: Any) -> None:
        self.bench, self.size, self.pool = bench, size, pool
        self.shape = f"{size} B {bench.job['dtype']}"
        count = max(1, size // bench.dtype.itemsize)
        self.x = torch.zeros(count, dtype=bench.dtype, device=bench.device)
        self.out = torch.empty_like(self.x)  # of a rival

    def call(self) -> object:
        self.outputs = (all_reduce(self.x, self.bench.who),)
        return self.outputs

    def timed(self) -> object:
        """In place, like the library's."""
        return all_reduce(self.x, self.bench.who, inplace=True)

    def fill(self, turn: int) -> None:
        self.x.copy_(integers(self.x.numel(), self.bench.who.rank, turn, self.x.dtype, self.x.device))

    def fill_random(self) -> None:
        draw = torch.Generator(self.x.device).manual_seed(self.bench.who.rank)
        self.x.normal_(generator=draw)

    def settle(self) -> None:
        """Zeros: their sums stay finite however often they are taken in place."""
        self.x.zero_()

    def deviations(self, turn: int) -> dict[str, float]:
        ranks = range(self.bench.who.world_size)
        wanted = sum(integers(self.x.numel(), r, turn, torch.float32, self.x.device) for r in ranks)
        return {"wrong": float((self.outputs[0].float() != wanted).sum())}

    def rivals(self) -> dict[str, Rival]:
        found: dict[str, Rival] = {"library": lambda: dist.all_reduce(self.x)}
        if isinstance(self.pool, str):
            return {**found, "torch one-shot": self.pool}
        shared = self.pool[0][: self.x.numel()]
        shared.copy_(self.x)
        group, ops = self.bench.who.name, torch.ops.symm_mem
        if self.size <= 32 << 20 and self.size % 4 == 0:
            found["torch one-shot"] = lambda: ops.one_shot_all_reduce_out(shared, "sum", group, self.out)
        if self.size % (16 * self.bench.who.world_size) == 0:
            found["torch two-shot"] = lambda: ops.two_shot_all_reduce_(shared, "sum", group)
        return found

    def selection(self) -> Selection:
        return all_reduce_selection(self.x, self.bench.who)


class Algorithm(AllReduce):
    """One kernel of the device's room, whatever the table says: for measuring the table's thresholds."""

    def __init__(
        self, bench: Means, size: int, name: str, kernel: Callable[[torch.Tensor, torch.Tensor], object]
    ) -> None:
        super().__init__(bench, size, "not timed in a sweep")
        self.name, self.kernel = name, kernel

    def call(self) -> object:
        self.outputs = (torch.empty_like(self.x),)
        self.kernel(self.x, self.outputs[0])
        return self.outputs

    def timed(self) -> object:
        return self.kernel(self.x, self.x)


class QkRms(Case):
    """`allreduce_qk_rms` on M tokens; the rival is partial kernel, library all-reduce, apply kernel."""

    name = "allreduce_qk_rms"

    def __init__(self, bench: Means, tokens: int) -> None:
        self.bench, self.tokens, self.size = bench, tokens, 8 * tokens
        world, self.device = bench.who.world_size, bench.device
        self.q_size, self.k_size = max(HEAD, Q_WIDTH // world), max(HEAD, K_WIDTH // world)
        self.shape = f"M {tokens} q {self.q_size} kv {self.k_size}"
        self.qkv = torch.zeros(tokens, self.q_size + 2 * self.k_size, dtype=bench.dtype, device=bench.device)
        self.q_weight, self.k_weight = self._weights(bench.who.rank)

    def _weights(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(rank)
        made = (torch.rand(n, generator=draw) + 0.5 for n in (self.q_size, self.k_size))
        q, k = (w.to(self.bench.dtype).to(self.device) for w in made)
        return q, k

    def _values(self, rank: int, turn: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(1000 * turn + rank)
        return torch.randn(self.qkv.shape, generator=draw).to(self.bench.dtype)

    def call(self) -> object:
        self.outputs = qk_rms.allreduce_qk_rms(
            self.qkv, self.q_weight, self.k_weight, self.q_size, self.k_size, EPS, self.bench.who
        )
        return self.outputs

    def fill(self, turn: int) -> None:
        self.qkv.copy_(self._values(self.bench.who.rank, turn))

    def fill_random(self) -> None:
        """The same values on every rank, so that the norms must be the same bits."""
        self.qkv.copy_(self._values(0, 99))
        self.q_weight.fill_(1)
        self.k_weight.fill_(1)

    def deviations(self, turn: int) -> dict[str, float]:
        ranks = range(self.bench.who.world_size)
        weights = [self._weights(r) for r in ranks]
        truth = qk_truth(
            [self._values(r, turn) for r in ranks], [w[0] for w in weights], [w[1] for w in weights], self.q_size,
            self.k_size, EPS,
        )[self.bench.who.rank]  # fmt: skip
        worst = max(float((a.cpu().double() - b).norm() / b.norm()) for a, b in zip(self.outputs, truth))
        return {"rel": worst, "wrong": float(not worst < 5e-3)}

    def rivals(self) -> dict[str, Rival]:
        sums = torch.empty(self.tokens, 2, dtype=torch.float32, device=self.device)
        q, k = (torch.empty_like(part) for part in self.outputs)

        def unfused() -> None:
            qk_rms.run_partial(self.qkv, self.q_size, self.k_size, sums)
            dist.all_reduce(sums)
            qk_rms.run_apply(
                self.qkv, sums, self.q_weight, self.k_weight, self.q_size, self.k_size, EPS, self.bench.who.world_size,
                q, k,
            )  # fmt: skip

        return {"unfused": unfused}

    def notes(self) -> dict[str, str]:
        """Who serves the unfused form's local halves: plain torch takes some twenty kernels for them."""
        sizes = (self.qkv, self.q_size, self.k_size)
        partial = qk_rms.case_of("qk_rms_partial", *sizes)
        apply = qk_rms.case_of("qk_rms_apply", *sizes, self.q_weight, self.bench.who.world_size)
        return {"unfused_halves": f"{select(partial).name}, {select(apply).name}"}

    def selection(self) -> Selection:
        return qk_selection(self.qkv, self.q_weight, self.k_weight, self.q_size, self.k_size, EPS, self.bench.who)


class AddRms(Case):
    """`all_reduce_add_rms` on M tokens; the rival is the library's all-reduce, then add and norm in torch."""

    name = "all_reduce_add_rms"

    def __init__(self, bench: Means, tokens: int) -> None:
        self.bench, self.tokens = bench, tokens
        self.shape = f"M {tokens} H {HIDDEN}"
        self.x = torch.zeros(tokens, HIDDEN, dtype=bench.dtype, device=bench.device)
        self.size = self.x.numel() * self.x.element_size()
        self.residual = self._values(-1, 0).to(bench.device)
        self.weight = (torch.rand(HIDDEN, generator=torch.Generator().manual_seed(7)) + 0.5).to(bench.dtype)
        self.weight = self.weight.to(bench.device)

    def _values(self, rank: int, turn: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(1000 * turn + rank + 1)
        return torch.randn(self.tokens, HIDDEN, generator=draw).to(self.bench.dtype)

    def call(self) -> object:
        self.outputs = all_reduce_add_rms(self.x, self.residual, self.weight, EPS, self.bench.who)
        return self.outputs

    def fill(self, turn: int) -> None:
        self.x.copy_(self._values(self.bench.who.rank, turn))

    def fill_random(self) -> None:
        self.fill(99)

    def deviations(self, turn: int) -> dict[str, float]:
        total = self.residual.cpu().double()
        for rank in range(self.bench.who.world_size):
            total = total + self._values(rank, turn).double()
        normed = total / (total.square().mean(dim=1, keepdim=True) + EPS).sqrt() * self.weight.cpu().double()
        pairs = zip(self.outputs, (normed, total))
        worst = max(float((a.cpu().double() - b).norm() / b.norm()) for a, b in pairs)
        return {"rel": worst, "wrong": float(not worst < 6e-3)}

    def rivals(self) -> dict[str, Rival]:
        x = torch.zeros_like(self.x)

        def unfused() -> torch.Tensor:
            dist.all_reduce(x)
            total = x + self.residual
            return torch.nn.functional.rms_norm(total, (HIDDEN,), self.weight, EPS)

        return {"unfused": unfused}

    def selection(self) -> Selection:
        return add_rms_selection(self.x, self.weight, self.bench.who)
