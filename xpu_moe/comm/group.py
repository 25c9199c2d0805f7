"""Communicators: a named process group with a timeout, made here or adopted from whoever made it (vLLM, torchrun)."""

from __future__ import annotations

import datetime
import importlib.util
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from xpu_moe.comm import guard
from xpu_moe.env import read
from xpu_moe.ops.errors import BadArgument

DEFAULT_TIMEOUT_S = 60.0

# device kind -> torch backends in the order of preference. `ccl` is the retired torch-ccl binding; it registers itself
# when its module is imported.
_BACKENDS: dict[str, tuple[str, ...]] = {"xpu": ("xccl", "ccl"), "cuda": ("nccl",), "cpu": ("gloo",)}
_LEGACY_CCL = ("oneccl_bindings_for_pytorch", "torch_ccl")


class NoCollectives(RuntimeError):
    """No collective library for this device in this torch; the message says what was looked for."""


class CollectiveTimeout(RuntimeError):
    """A collective or the meeting of the ranks did not end in time; says which, and after how long."""


@dataclass(frozen=True)
class Communicator:
    """The ranks that call a collective together. `name` is the process group's name, unique in the process."""

    name: str
    rank: int
    world_size: int
    backend: str
    process_group: Any = None  # torch.distributed.ProcessGroup; None for a world of one
    timeout_s: float = DEFAULT_TIMEOUT_S

    def sum_inplace(self, x: torch.Tensor) -> None:
        """Sum of contiguous `x` over the ranks, into x. On a device it is enqueued on the current stream."""
        if self.process_group is None:
            return
        self._bounded("all_reduce", lambda: self.process_group.allreduce([x], _options(self.timeout_s)))

    def barrier(self) -> None:
        """All ranks arrived, or CollectiveTimeout."""
        if self.process_group is not None:
            self._bounded("barrier", self.process_group.barrier)

    def _bounded(self, what: str, start: Any) -> None:
        try:
            work = start()
            if work is not None:  # None: already ordered on the caller's stream
                work.wait()
        except RuntimeError as error:
            if "timed out" in str(error).lower() or "timeout" in str(error).lower():
                raise CollectiveTimeout(
                    f"{what} on group {self.name} ({self.backend}, {self.world_size} ranks): rank {self.rank} waited "
                    f"{self.timeout_s:g} s: {error}"
                ) from error
            raise


SOLO = Communicator("solo", 0, 1, "none")
_known: dict[str, Communicator] = {SOLO.name: SOLO}


def backend_for(kind: str) -> str:
    """The torch backend for a device kind (xpu: xccl, else legacy ccl; cuda: nccl; cpu: gloo). Raises NoCollectives."""
    if kind not in _BACKENDS:
        raise ValueError(f"kind: got {kind!r}, wanted one of {', '.join(_BACKENDS)}")
    if not dist.is_available():
        raise NoCollectives("this torch is built without torch.distributed")
    for name in _BACKENDS[kind]:
        if name == "ccl":
            module = next((m for m in _LEGACY_CCL if importlib.util.find_spec(m)), None)
            if module is not None:
                importlib.import_module(module)
                return name
        elif dist.is_backend_available(name):
            return name
    looked = ", ".join(_BACKENDS[kind])
    raise NoCollectives(f"torch {torch.__version__} has no collective backend for {kind} (looked for: {looked})")


def init(
    kind: str, rank: int | None = None, world_size: int | None = None, *, address: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S, backend: str | None = None, local_rank: int | None = None,
) -> Communicator:  # fmt: skip
    """Make the default process group and return its communicator.

    Under torchrun nothing is named and RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT say who is who; ranks
    that were spawned otherwise pass all three, `address` as `tcp://host:port` or `file:///path`. Init and every later
    collective end after `timeout_s` seconds: gloo and NCCL raise or abort, xccl raises where
    TORCH_XCCL_BLOCKING_WAIT=1; oneCCL's init ends the process after twice the time. Raises NoCollectives,
    CollectiveTimeout.
    """
    joined = rank is None
    rank = read.integer("RANK") if rank is None else rank
    world_size = read.integer("WORLD_SIZE") if world_size is None else world_size
    if rank is None or world_size is None:
        raise ValueError("rank, world_size: got none, wanted both, or torchrun's RANK and WORLD_SIZE")
    local = local_rank if local_rank is not None else (read.integer("LOCAL_RANK") if joined else rank)
    name = backend or backend_for(kind)
    options: dict[str, Any] = {"timeout": datetime.timedelta(seconds=timeout_s), "rank": rank, "world_size": world_size}
    options["init_method"] = address or "env://"
    if kind in ("cuda", "xpu"):
        torch.accelerator.set_device_index(local or 0)
        if kind == "cuda":
            options["device_id"] = torch.device("cuda", local or 0)  # connect now, not at the first collective
    try:
        with guard.bounded(2 * timeout_s, f"the meeting of {name} ranks") if kind == "xpu" else nullcontext():
            dist.init_process_group(name, **options)  # oneCCL bounds its key-value store, and nothing after it
    except RuntimeError as error:  # torch's DistStoreError, DistNetworkError and DistBackendError among them
        where = options["init_method"]
        raise CollectiveTimeout(
            f"init of {name} at {where}: rank {rank} of {world_size} did not meet the others: {error}"
        ) from error
    return adopt(dist.group.WORLD, timeout_s=timeout_s)


def adopt(process_group: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Communicator:
    """The communicator of a process group that somebody made; kept, so that operators find it by name."""
    name = process_group.group_name
    known = _known.get(name)
    if known is not None and known.process_group is process_group:
        return known
    made = Communicator(
        name=name,
        rank=process_group.rank(),
        world_size=process_group.size(),
        backend=dist.get_backend(process_group),
        process_group=process_group,
        timeout_s=timeout_s,
    )
    _known[name] = made
    return made


def lookup(name: str) -> Communicator:
    """The communicator of a group's name (adopted or made here). KeyError says which names are known."""
    try:
        return _known[name]
    except KeyError:
        raise KeyError(f"group {name!r} is unknown: pass its process group to comm.adopt first") from None


def default() -> Communicator:
    """The default group's communicator; a world of one where no process group was made."""
    return adopt(dist.group.WORLD) if dist.is_available() and dist.is_initialized() else SOLO


def given(communicator: Communicator | None) -> Communicator:
    """The communicator that a call names, the default group's where it names none. Raises BadArgument."""
    if isinstance(communicator, Communicator):
        return communicator
    if communicator is None:
        return default()
    wanted = "a Communicator (of comm.init, or comm.adopt(process_group)), or None for the default group"
    raise BadArgument(f"communicator: got {type(communicator).__name__}, wanted {wanted}")


def close() -> None:
    """Destroy the default process group, if there is one, and forget all names."""
    _known.clear()
    _known[SOLO.name] = SOLO
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _options(timeout_s: float) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM  # type: ignore[assignment]
    options.timeout = datetime.timedelta(seconds=timeout_s)
    if hasattr(options, "asyncOp"):
        options.asyncOp = False  # on the caller's stream: an own stream costs two events, 10 us of a captured NCCL call
    return options
