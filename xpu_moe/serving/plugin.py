"""The entry point `vllm.general_plugins`: vLLM calls `register` in each of its processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_done = False


def register() -> None:
    """Make the quantization configs known and prepare the hooks. Idempotent; never raises.

    On a vLLM that the plugin was not tested with it logs one line and leaves vLLM alone.
    """
    global _done
    if _done:
        return
    _done = True
    from xpu_moe.serving import compat, tell

    try:
        reason = compat.untested(compat.version())
        if not reason:
            _install()
    except Exception as error:
        # An exception here would end every vLLM process of this environment, whatever model it serves.
        tell.log.exception("xpu_moe: the plugin could not be set up; vLLM is left as it is")
        reason = f"the plugin could not be set up: {type(error).__name__}: {error}"
    if reason:
        tell.note(reason)


def _install() -> None:
    from xpu_moe.serving import (
        compat,
        config,  # noqa: F401  registers the quantization configs
        hooks,
    )

    hooks.install_early()
    compat.wrap_create_engine_config(_fill_options)
    compat.wrap_init_device(_around_init_device)


def _fill_options(vllm_config: Any) -> None:
    """Options that nobody gave are the defaults; with their fingerprint they enter the compile-cache key. BadOption."""
    from xpu_moe.formats.claims import NAMES
    from xpu_moe.serving.options import Options

    given = vllm_config.additional_config
    if isinstance(given, dict) and getattr(vllm_config.model_config, "quantization", None) in NAMES:
        vllm_config.additional_config = Options().additional_config(given)


def _around_init_device(wrapper: Any, initialise: Callable[[], Any]) -> Any:
    """In a worker, before and after it takes its device: read the options, set the hooks. BadOption ends the start."""
    from xpu_moe.serving import hooks, tell
    from xpu_moe.serving.options import Options

    options = Options.read(wrapper.vllm_config.additional_config)
    tell.options(options)
    context = hooks.before_device(options, wrapper.vllm_config)
    result = initialise()
    hooks.after_device(context, wrapper)
    return result
