"""`probe moe --opencl`: the runtime road on the OpenCL CPU device, and what our own host code costs a layer."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from xpu_moe.esimd.runtime import session, standalone
from xpu_moe.esimd.runtime.libsycl import require_loaded
from xpu_moe.esimd.runtime.moe import Moe, RoutedMoe
from xpu_moe.esimd.runtime.room import TWINS


def probe(shape: Any, call: Any) -> dict[str, Any]:
    """Run `call` (xpu_moe.probe.moe_call.Call) by the SIMT twin: numbers, host code and submission in us a layer.

    Raises ToolEnvironmentError, BuildError, RuntimeFailure, KernelMissing; ValueError for a case that no twin serves.
    """
    running, device = session.for_opencl_cpu(), standalone.start()
    backend = (RoutedMoe if shape.routed else Moe)(TWINS, lambda index: running)
    if refusal := backend.refusal(call.case()):
        raise ValueError(refusal)
    weights = [device.tensor(tensor.cpu()) for tensor in call.weights.values()]
    x, *routes = (device.tensor(tensor.cpu()) for tensor in (call.x, *call.routes[0]))
    out = device.empty(shape.tokens, shape.hidden_size, dtype=x.dtype)
    out.fill_(float("nan"))
    work = device.empty(backend.workspace(call.case()), dtype=torch.uint8)
    layer = _bound(backend, weights, routes, shape, x.dtype)
    given = routes[:1] if shape.routed else routes  # a bias belongs to the layer

    def once() -> None:
        layer(x, *given, out, work)

    once()
    device.wait()
    checked = call.verdict(out)
    host, submit = host_us(device, once), submit_us(device, once)
    found = require_loaded()
    return {
        **checked, "device": running.device["name"], "driver": running.device["driver"], "libsycl": found.path.name,
        "backend": backend.name, "host_us": host, "submit_us": submit,
        "lines": [
            f"SIMT twin on {running.device['name']}, OpenCL driver {running.device['driver']}, {found.path.name}",
            f"our host code {host:.1f} us a layer (launches left out); with the OpenCL submit {submit:.1f} us",
        ],
    }  # fmt: skip


def _bound(backend: Any, weights: list, routes: list, shape: Any, dtype: torch.dtype) -> Any:
    settings = {
        "nibble": shape.nibble, "group_size": shape.group_size, "top_k": shape.top_k, "dtype": dtype,
        "activation": shape.activation,
    }  # fmt: skip
    return backend.bind(*weights, routes[1], **settings) if shape.routed else backend.bind(*weights, **settings)


def host_us(device: standalone.Standalone, call: Any, calls: int = 100, rounds: int = 70) -> float:
    """Our own host code a call, in us: the best round's mean with the submissions left out. A round is shorter than
    a time slice, so that some have their core to themselves on a busy machine too."""
    device.library.noop(True)
    try:
        return min(_mean_us(call, calls) for _ in range(rounds))
    finally:
        device.library.noop(False)


def submit_us(device: standalone.Standalone, call: Any, calls: int = 20, rounds: int = 5) -> float:
    """Until a call that submits returns, in us: the median round's mean."""
    figures = []
    for _ in range(rounds):
        figures.append(_mean_us(call, calls))
        device.wait()
    return statistics.median(figures)


def _mean_us(call: Any, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls * 1e6
