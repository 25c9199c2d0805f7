"""Places in vLLM that the plugin changes. `table` is data and needs no vLLM; each hook is the file of its name.

A hook may have `early()` (at registration, in every process), `before(context)` (in a worker, before it takes its
device) and `after(context, wrapper)` (when it has one). Each returns a sentence about what was done; an empty one means
that nothing was there to do.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from xpu_moe.serving.hooks.table import HOOKS, Hook, chosen
from xpu_moe.serving.options import Options


@dataclass(frozen=True)
class Context:
    """What a hook may want to know."""

    device: str
    release: str
    options: Options
    vllm_config: Any
    hooks: tuple[Hook, ...]


def install_early() -> None:
    """Hooks of this device that every process needs and no option concerns."""
    from xpu_moe.serving import compat

    device, release = compat.device_kind(), compat.release(compat.version())
    for hook in HOOKS:
        if device in hook.auto and release in hook.vllm:
            _call(hook, "early")


def before_device(options: Options, vllm_config: Any) -> Context:
    """The chosen hooks' first half. Raises UnknownHook."""
    from xpu_moe.serving import compat

    device, release = compat.device_kind(), compat.release(compat.version())
    context = Context(device, release, options, vllm_config, chosen(options.hooks, device, release))
    for hook in context.hooks:
        _call(hook, "before", context)
    return context


def after_device(context: Context, wrapper: Any) -> None:
    """The chosen hooks' second half."""
    for hook in context.hooks:
        _call(hook, "after", context, wrapper)


def _call(hook: Hook, moment: str, *arguments: Any) -> None:
    from xpu_moe.serving import tell

    function = getattr(importlib.import_module(f"{__name__}.{hook.name}"), moment, None)
    done = function(*arguments) if function is not None else ""
    if done:
        tell.hook(hook.name, done)
