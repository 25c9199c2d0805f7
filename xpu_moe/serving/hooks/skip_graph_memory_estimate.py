"""No trial capture for the memory estimate.

vLLM captures graphs once to see what they take, throws them away and captures again. On stacks where a second capture
is what fails, only the one that serves may happen. The KV cache is then sized without the graphs' bytes: give
`--kv-cache-memory-bytes`.
"""

from __future__ import annotations

from typing import Any

from xpu_moe.serving import compat


def after(context: Any, wrapper: Any) -> str:
    runner = compat.model_runner(wrapper)
    if runner is None or not hasattr(runner, "profile_cudagraph_memory"):
        return ""
    runner.profile_cudagraph_memory = lambda: 0
    return "the graph memory estimate is skipped (0 bytes): size the KV cache with --kv-cache-memory-bytes"
