"""Inside the process that has the card: everything of the launch runtime that comes before a kernel runs.

`python -m xpu_moe.esimd.nullcard.child FOLDER`, with card.py's environment and libsycl's FOLDER, prints one JSON
object.
"""

from __future__ import annotations

import ctypes as C
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from xpu_moe import streams
from xpu_moe.esimd.kernels import launch as shapes
from xpu_moe.esimd.runtime import opencl_probe, session
from xpu_moe.esimd.runtime.library import library
from xpu_moe.esimd.runtime.libsycl import require_loaded
from xpu_moe.esimd.runtime.moe import Moe, RoutedMoe
from xpu_moe.esimd.runtime.room import ESIMD, TWINS, Room
from xpu_moe.esimd.runtime.session import Session
from xpu_moe.esimd.runtime.small import Partial, Rms, Route
from xpu_moe.esimd.runtime.standalone import Standalone
from xpu_moe.ops.contract import Case

TOKENS = (1, 2, 4, 8, 16, 64)
GROUPS = shapes.GROUP_SIZES
HIDDEN, INTER, EXPERTS, TOP_K = 3072, 384, 8, 8  # MiniMax at TP4, but for the experts: as many as a token wants
Q_SIZE, KV_SIZE, WORLD = 1536, 256, 4


def started(folder: Path) -> tuple[Standalone, Session]:
    """A queue on the card, and its session. Raises RuntimeFailure where SYCL finds no such device."""
    C.CDLL(str(next(folder.glob("libsycl.so.?"))), mode=C.RTLD_GLOBAL)
    loaded = library()
    queue = loaded.queue(gpu=True)
    loaded.use_for_cpu_tensors(queue)
    return Standalone(loaded, queue), Session(session.ready(loaded, "CPU"), queue, "null-card")


def modules(room: Room, running: Session) -> dict[str, float]:
    """Every module of a room, compiled by the driver: ms each."""
    found = {}
    for file in sorted(room.folder.glob("*.spv")):
        begun = time.perf_counter()
        running.load(room, file.stem)
        found[file.stem] = round((time.perf_counter() - begun) * 1e3, 1)
    return found


class Calls:
    """Calls of every operator at the model's sizes, on memory that holds nothing in particular."""

    def __init__(self, device: Standalone, running: Session, room: Room) -> None:
        self.device, self.running, self.room = device, running, room

    def _of(self, kind: type) -> Any:
        return kind(self.room, lambda index: self.running)

    def _zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return self.device.tensor(torch.zeros(shape, dtype=dtype))

    def _weights(self, dtype: torch.dtype, group: int) -> tuple[torch.Tensor, ...]:
        byte = torch.uint8
        return (
            self._zeros(EXPERTS, 2 * INTER, HIDDEN // 2, dtype=byte),
            self._zeros(EXPERTS, 2 * INTER, HIDDEN // group, dtype=dtype),
            self._zeros(EXPERTS, HIDDEN, INTER // 2, dtype=byte),
            self._zeros(EXPERTS, HIDDEN, INTER // group, dtype=dtype),
        )

    def each(self) -> Iterator[tuple[str, Callable[[], object]]]:
        for dtype in (torch.float16, torch.bfloat16):
            name = str(dtype).removeprefix("torch.")
            for group in GROUPS:
                weights = self._weights(dtype, group)
                for tokens in TOKENS if group == 128 else (1, 16):
                    yield f"moe_u4 {name} g{group} M {tokens}", self.moe(weights, dtype, group, tokens, routed=False)
                    yield (
                        f"moe_u4_routed {name} g{group} M {tokens}",
                        self.moe(weights, dtype, group, tokens, routed=True),
                    )
            for tokens in (1, 64):
                yield from self._small(name, dtype, tokens)

    def moe(self, weights: tuple, dtype: torch.dtype, group: int, tokens: int, *, routed: bool) -> Callable[[], object]:
        backend = self._of(RoutedMoe if routed else Moe)
        case = Case(
            "moe_u4_routed" if routed else "moe_u4", "xpu", dtype=str(dtype).removeprefix("torch."), tokens=tokens,
            hidden_size=HIDDEN, intermediate_size=INTER, num_experts=EXPERTS, top_k=TOP_K, group_size=group,
            nibble="u4", activation="silu",
        )  # fmt: skip
        settings = {"nibble": "u4", "group_size": group, "activation": "silu"}
        x, out = (self._zeros(tokens, HIDDEN, dtype=dtype) for _ in range(2))
        work = self._zeros(max(1, backend.workspace(case)), dtype=torch.uint8)
        if routed:
            logits, bias = self._zeros(tokens, EXPERTS, dtype=torch.float32), self._zeros(EXPERTS, dtype=torch.float32)
            return lambda: backend.run(
                x, *weights, logits, bias, TOP_K, **settings, renormalize=True, scale=1.0, out=out, workspace=work
            )
        routes = self._zeros(tokens, TOP_K, dtype=torch.float32), self._zeros(tokens, TOP_K, dtype=torch.int32)
        return lambda: backend.run(x, *weights, *routes, **settings, out=out, workspace=work)

    def _small(self, name: str, dtype: torch.dtype, tokens: int) -> Iterator[tuple[str, Callable[[], object]]]:
        logits = self._zeros(tokens, 256, dtype=dtype)
        bias = self._zeros(256, dtype=torch.float32)
        weights, ids = self._zeros(tokens, 8, dtype=torch.float32), self._zeros(tokens, 8, dtype=torch.int32)
        route = self._of(Route)
        yield (
            f"route_sigmoid_topk {name} M {tokens}",
            lambda: route.run_out(logits, bias, 8, weights, ids, renormalize=True, scale=1.0),
        )
        qkv = self._zeros(tokens, Q_SIZE + 2 * KV_SIZE, dtype=dtype)
        sums = self._zeros(tokens, 2, dtype=torch.float32)
        sizes = {"q_size": Q_SIZE, "kv_size": KV_SIZE}
        partial, apply = self._of(Partial), self._of(Rms)
        yield f"qk_rms_partial {name} M {tokens}", lambda: partial.run(qkv, **sizes, out=sums)
        q_weight, k_weight = self._zeros(Q_SIZE, dtype=dtype), self._zeros(KV_SIZE, dtype=dtype)
        q_out, k_out = self._zeros(tokens, Q_SIZE, dtype=dtype), self._zeros(tokens, KV_SIZE, dtype=dtype)
        yield (
            f"qk_rms_apply {name} M {tokens}",
            lambda: apply.run(
                qkv, sums, q_weight, k_weight, **sizes, eps=1e-6, world_size=WORLD, q_out=q_out, k_out=k_out
            ),
        )


def bound_cost(calls: Calls) -> dict[str, float]:
    """What a bound moe_u4 layer costs the host at M 1: our own code, and with the driver's encoding; us."""
    dtype, group = torch.float16, 128
    weights = calls._weights(dtype, group)
    layer = calls._of(Moe).bind(*weights, nibble="u4", group_size=group, top_k=TOP_K, dtype=dtype, activation="silu")
    x, out = (calls._zeros(1, HIDDEN, dtype=dtype) for _ in range(2))
    routes = calls._zeros(1, TOP_K, dtype=torch.float32), calls._zeros(1, TOP_K, dtype=torch.int32)
    work = calls._zeros(1 << 16, dtype=torch.uint8)

    def once() -> None:
        layer(x, *routes, out, work)

    once()
    calls.device.wait()
    host, submit = opencl_probe.host_us(calls.device, once), opencl_probe.submit_us(calls.device, once)
    return {"own_us": round(host, 2), "submit_us": round(submit, 2)}


def recorded(calls: Calls) -> dict[str, float]:
    """A layer recorded into a SYCL graph (a command buffer of the driver) and replayed: us a replay."""
    loaded, queue = calls.device.library, calls.device.queue
    once = calls.moe(calls._weights(torch.float16, 128), torch.float16, 128, 1, routed=False)
    once()
    calls.device.wait()
    replay = loaded.graph(queue, once)
    replay()
    calls.device.wait()
    begun = time.perf_counter()
    for _ in range(100):
        replay()
    calls.device.wait()
    return {"replay_us": round((time.perf_counter() - begun) * 1e4, 2)}


def main(folder: str) -> int:
    device, running = started(Path(folder))
    answer: dict[str, Any] = {"device": running.device, "libsycl": require_loaded().path.name, "rooms": {}}
    for room in (ESIMD, TWINS):
        streams.warn(f"driver: compiling and calling {room.name}")
        compiled = modules(room, running)
        calls = Calls(device, running, room)
        submitted = []
        for name, call in calls.each():
            call()
            device.wait()
            submitted.append(name)
        answer["rooms"][room.name] = {"modules_ms": compiled, "submitted": submitted}
    calls = Calls(device, running, ESIMD)
    answer["layer"] = bound_cost(calls) | recorded(calls)
    return streams.emit("driver", json.dumps(answer))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
