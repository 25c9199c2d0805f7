"""Capturing calls into a graph, on the devices that can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def capture(kind: str, call: Callable[[], Any], times: int) -> tuple[Any, Any]:
    """(graph, the last call's result) of `times` calls. RuntimeError or AttributeError where the device cannot."""
    module = torch.cuda if kind == "cuda" else torch.xpu
    graph = module.CUDAGraph() if kind == "cuda" else module.XPUGraph()
    # thread_local: the collective library's watchdog thread may query events while this thread captures
    options = {"capture_error_mode": "thread_local"} if kind == "cuda" else {}
    side = module.Stream()
    side.wait_stream(module.current_stream())
    with module.stream(side):
        call()
    module.current_stream().wait_stream(side)
    module.synchronize()
    out = None
    with module.graph(graph, **options):
        for _ in range(times):
            out = call()
    return graph, out
