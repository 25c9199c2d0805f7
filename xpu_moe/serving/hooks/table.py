"""The hooks that the plugin has: a launcher reads here whether one exists before it plans on it. Needs no vLLM.

Options name hooks (`Options.hooks`); "auto" stands for the rows whose `auto` holds the device. A hook is the file of
its name in this folder, with `before(context)` and/or `after(context, worker)`: each returns one sentence that says
what it did, or why it left vLLM alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hook:
    """`devices`: where it can act; `auto`: where it does so unasked; `vllm`: the releases it was made for."""

    name: str
    devices: tuple[str, ...]
    auto: tuple[str, ...]
    vllm: tuple[str, ...]
    what: str
    source: str


HOOKS = (
    Hook(
        "cpu_router", ("cpu",), ("cpu",), ("0.32",),
        "sigmoid routing with a bias in vLLM's CPU router, which knows softmax only and ends the engine",
        "vllm 0.32 fused_moe/router/cpu_router.py",
    ),
    Hook(
        "qk_norm", ("xpu", "cuda", "cpu"), ("xpu", "cuda"), ("0.26", "0.32"),
        "the query/key norm and its all-reduce as ops.allreduce_qk_rms, where a backend serves the case",
        "vllm minimax_rms_norm/rms_norm_tp.py, the same file in 0.26 and 0.32",
    ),
    Hook(
        "skip_graph_memory_estimate", ("xpu", "cuda"), (), ("0.26", "0.32"),
        "no trial capture for the memory estimate: the first capture is the one that serves",
        "vllm v1/worker/gpu_worker.py, profile_cudagraph_memory",
    ),
)  # fmt: skip

# Names that a graph policy may ask for and that the plugin does not have, each with the reason.
ABSENT = {
    "graph_communicator": "only vLLM up to 0.21 refuses XPU's communicator in graph capture, and the plugin leaves "
    "that release alone; 0.26 and 0.32 accept it",
}

KNOWN = {hook.name: hook for hook in HOOKS}


class UnknownHook(ValueError):
    """A hook name that the plugin does not have; the message says which it has, or why it has none of this name."""


def chosen(names: tuple[str, ...], device: str, release: str) -> tuple[Hook, ...]:
    """The rows that `names` ask for on a device kind and vLLM release ("0.32"). Raises UnknownHook."""
    for name in names:
        if name != "auto" and name not in KNOWN:
            raise UnknownHook(f"hooks: {name!r}: {ABSENT.get(name, 'unknown')}; known: auto, {', '.join(KNOWN)}")
    wanted = [hook for hook in HOOKS if hook.name in names or ("auto" in names and device in hook.auto)]
    return tuple(hook for hook in wanted if device in hook.devices and release in hook.vllm)
