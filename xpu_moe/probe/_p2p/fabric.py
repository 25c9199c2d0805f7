"""The cards and how memory gets from one to another: torch on CUDA and XPU, dpctl without torch, or a rehearsal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy

from xpu_moe.probe._p2p import faults

Words = numpy.ndarray  # uint32


class Fabric(Protocol):
    """Cards by index. A buffer is what `buffer` returned; copies are asynchronous until `wait`."""

    cards: tuple[int, ...]

    def reachable(self, source: int, target: int) -> bool: ...

    def buffer(self, card: int, words: Words) -> Any: ...

    def write(self, buffer: Any, words: Words) -> None: ...

    def read(self, buffer: Any) -> Words: ...

    def copy(self, source: Any, target: Any) -> None: ...

    def wait(self) -> None: ...


class TorchFabric:
    """Cards of torch.cuda or torch.xpu."""

    def __init__(self, kind: str, cards: Sequence[int] | None) -> None:
        import torch

        self._torch, self._kind = torch, kind
        self._module = getattr(torch, kind)
        self.cards = tuple(cards) if cards is not None else tuple(range(self._module.device_count()))
        self._streams: dict[tuple[int, int], Any] = {}

    def reachable(self, source: int, target: int) -> bool:
        ask = getattr(self._module, "can_device_access_peer", None)
        if ask is None:
            raise LookupError(f"torch {self._torch.__version__} cannot ask {self._kind} devices for peer access")
        return bool(ask(source, target))

    def buffer(self, card: int, words: Words) -> Any:
        return self._torch.from_numpy(words.view(numpy.int32).copy()).to(f"{self._kind}:{card}")

    def write(self, buffer: Any, words: Words) -> None:
        buffer.copy_(self._torch.from_numpy(words.view(numpy.int32).copy()))

    def read(self, buffer: Any) -> Words:
        return buffer.cpu().numpy().view(numpy.uint32)

    def copy(self, source: Any, target: Any) -> None:
        """On a stream of its own for each direction, so that copies run beside each other."""
        pair = (source.device.index, target.device.index)
        if pair not in self._streams:
            self._streams[pair] = self._module.Stream(device=source.device)
        with self._module.stream(self._streams[pair]):
            target.copy_(source, non_blocking=True)

    def wait(self) -> None:
        for card in self.cards:
            self._module.synchronize(card)


class DpctlFabric:
    """Intel cards through dpctl, where torch has no XPU."""

    def __init__(self, cards: Sequence[int] | None) -> None:
        import dpctl
        import dpctl.memory

        self._memory = dpctl.memory
        gpus = dpctl.get_devices(backend="level_zero", device_type="gpu")
        self.cards = tuple(cards) if cards is not None else tuple(range(len(gpus)))
        self._gpus = gpus
        context = dpctl.SyclContext([gpus[card] for card in self.cards])  # one context: peers see each other's memory
        self._queues = {card: dpctl.SyclQueue(context, gpus[card], property="in_order") for card in self.cards}
        self._pending: list[Any] = []

    def reachable(self, source: int, target: int) -> bool:
        ask = getattr(self._gpus[source], "can_access_peer", None)
        if ask is None:
            raise LookupError("this dpctl cannot ask for peer access")
        return bool(ask(self._gpus[target]))

    def buffer(self, card: int, words: Words) -> Any:
        made = self._memory.MemoryUSMDevice(words.nbytes, queue=self._queues[card])
        made.copy_from_host(words.view(numpy.uint8))
        return made

    def write(self, buffer: Any, words: Words) -> None:
        buffer.copy_from_host(words.view(numpy.uint8))

    def read(self, buffer: Any) -> Words:
        return numpy.frombuffer(buffer.copy_to_host(), dtype=numpy.uint32)

    def copy(self, source: Any, target: Any) -> None:
        queue = target.sycl_queue
        self._pending.append(queue.memcpy_async(target, source, source.nbytes))

    def wait(self) -> None:
        for event in self._pending:
            event.wait()
        self._pending.clear()


class Rehearsal:
    """Cards that are host memory: shows and tests what the probe says. `fault` (see `faults`) breaks one direction."""

    def __init__(self, cards: Sequence[int], fault: str = "") -> None:
        self.cards = tuple(cards)
        self._breaks = faults.parse(fault, len(self.cards)).breaks

    def reachable(self, source: int, target: int) -> bool:
        return not self._breaks("unreachable", source, target)

    def buffer(self, card: int, words: Words) -> Any:
        return (card, words.copy())

    def write(self, buffer: Any, words: Words) -> None:
        buffer[1][:] = words

    def read(self, buffer: Any) -> Words:
        return buffer[1]

    def copy(self, source: Any, target: Any) -> None:
        target[1][:] = source[1]
        if self._breaks("corrupt", source[0], target[0]):
            target[1][len(target[1]) // 3] ^= 1 << 17
        if self._breaks("stale", source[0], target[0]):
            target[1][-16:] = 0
        if self._breaks("kill", source[0], target[0]):
            os.kill(os.getpid(), signal.SIGKILL)
        while self._breaks("hang", source[0], target[0]):
            time.sleep(3600)

    def wait(self) -> None:
        return


def choose(kind: str, cards: Sequence[int] | None, rehearse: int = 0, fault: str = "") -> Fabric:
    """The fabric for a device kind. Raises LookupError where nothing can reach the cards."""
    if rehearse:
        return Rehearsal(range(rehearse), fault)
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    for usable, make in _ways(kind, torch, cards):
        if usable:
            return make()
    raise LookupError(f"no way to {kind} cards: wanted a torch built for {kind}{', or dpctl' if kind == 'xpu' else ''}")


def _ways(kind: str, torch: Any, cards: Sequence[int] | None) -> list[tuple[bool, Callable[[], Fabric]]]:
    module = getattr(torch, kind, None) if torch is not None else None
    ways: list[tuple[bool, Callable[[], Fabric]]] = [
        (module is not None and module.is_available(), lambda: TorchFabric(kind, cards))
    ]
    if kind == "xpu":
        import importlib.util

        ways.append((importlib.util.find_spec("dpctl") is not None, lambda: DpctlFabric(cards)))
    return ways
