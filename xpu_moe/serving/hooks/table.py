"""The hooks that the plugin has: a launcher reads here whether one exists before it plans on it.

Options name hooks (`Options.hooks`); "auto" stands for the rows with `auto`. A hook is the file of its name in this
folder, with `install(context) -> str`: one sentence that says what it did, or why it left vLLM alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hook:
    """`devices`: where it can act. `auto`: installed without being asked. `vllm`: the versions that need it."""

    name: str
    devices: tuple[str, ...]
    vllm: tuple[str, ...]
    auto: bool
    what: str
    source: str


HOOKS = (
    Hook(
        "cpu_router", ("cpu",), ("0.32",), True,
        "sigmoid routing with a bias in vLLM's CPU router, which knows softmax only and ends the engine",
        "vllm 0.32 fused_moe/router/cpu_router.py",
    ),
    Hook(
        "qk_norm", ("xpu", "cuda", "cpu"), ("0.26", "0.32"), True,
        "the fused query/key norm with its all-reduce in one operator, where ops.allreduce_qk_rms serves the case",
        "vllm minimax_rms_norm/rms_norm_tp.py, the same file in both",
    ),
    Hook(
        "graph_communicator", ("xpu",), ("0.26",), False,
        "a communicator that vLLM's graph capture accepts where the device's own is refused",
        "vllm GroupCoordinator.graph_capture",
    ),
    Hook(
        "skip_graph_memory_estimate", ("xpu",), ("0.26", "0.32"), False,
        "no trial capture for the memory estimate: the capture that serves is the only one",
        "vllm v1/worker: profile_cudagraph_memory",
    ),
)  # fmt: skip

KNOWN = {hook.name: hook for hook in HOOKS}


def chosen(names: tuple[str, ...], device: str, release: str) -> tuple[Hook, ...]:
    """The rows that `names` ask for on a device kind and vLLM release ("0.32"). ValueError for an unknown name."""
    for name in names:
        if name != "auto" and name not in KNOWN:
            raise ValueError(f"hooks: unknown {name!r}; known: auto, {', '.join(KNOWN)}")
    wanted = [hook for hook in HOOKS if hook.name in names or ("auto" in names and hook.auto)]
    return tuple(hook for hook in wanted if device in hook.devices and release in hook.vllm)
