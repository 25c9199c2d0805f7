"""`probe moe --emulate`: the ESIMD source on the host CPU, through Intel's own headers: its numbers and its bytes."""

from __future__ import annotations

import time
from typing import Any

import torch

# Weight and scale bytes loaded over those of the distinct experts, once: the bounds that the kernels' tests hold.
RATIO = {1: 1.02, 2: 1.05, 3: 1.05, 4: 1.05}


def probe(shape: Any, call: Any) -> dict[str, Any]:
    """Run `call` (xpu_moe.probe.moe_call.Call) by the ESIMD kernels' source: numbers against float64, traffic.

    Raises MissingProgram (clang: names the package), ToolEnvironmentError, ValueError for a case they do not serve.
    """
    from xpu_moe.esimd.host import emulate
    from xpu_moe.esimd.tools import programs

    versions = {"clang": str(programs.find("clang"))}
    first, second = (tensor.cpu() for tensor in call.routes[0])
    weights = {name: tensor.cpu() for name, tensor in call.weights.items()}
    routing = {"logits": first, "bias": second} if shape.routed else {"topk_weights": first, "topk_ids": second}
    settings: dict[str, Any] = {**call.settings, **({"top_k": shape.top_k} if shape.routed else {})}
    start = time.perf_counter()
    run = emulate.moe_u4(call.x.cpu(), **weights, **routing, **settings)
    took = time.perf_counter() - start
    checked = call.verdict(torch.from_numpy(run.output))
    bound = RATIO.get(shape.tokens)
    traffic_ok = bound is None or run.traffic_ratio <= bound
    threads = ", ".join(f"{name} {count}" for name, count in run.threads.items())
    return {
        **checked, "ok": checked["ok"] and traffic_ok, "traffic_ratio": run.traffic_ratio, "traffic_bound": bound,
        "weight_bytes": run.weight_bytes, "floor_bytes": run.floor_bytes, "threads": dict(run.threads),
        "clang": versions["clang"], "seconds": took,
        "lines": [
            f"{run.weight_bytes / 1e6:.2f} MB of weights and scales loaded, {run.traffic_ratio:.3f} x the distinct "
            f"experts' bytes" + (f" (limit {bound:g})" if bound else ""),
            f"hardware threads: {threads}",
            f"clang {versions['clang']}, {took:.1f} s: emulated time says nothing about a card",
        ],
    }  # fmt: skip
