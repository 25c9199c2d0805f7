"""What differs between the vLLM releases that the plugin was tested with: the only file that asks for the version.

Imports vLLM lazily, function by function. Names that 0.26 and 0.32 share are imported where they are used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# release -> what was seen to work with it, in docs/serving.md
TESTED = ("0.26", "0.32")


def release(version: str) -> str:
    """ "0.32.0+cpu" -> "0.32"; "" for a text without two numbers."""
    parts = version.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else ""


def untested(version: str) -> str:
    """Why the plugin leaves this vLLM alone, "" where it was tested."""
    if release(version) in TESTED:
        return ""
    return f"vLLM {version} is untested with this xpu_moe (tested: {', '.join(TESTED)}); vLLM is left as it is"


def version() -> str:
    """vLLM's version text."""
    import vllm

    return str(vllm.__version__)


def device_kind() -> str:
    """xpu, cuda, cpu, or vLLM's own word for another platform (rocm, tpu)."""
    from vllm.platforms import current_platform

    for kind in ("cpu", "xpu", "cuda", "rocm"):
        if getattr(current_platform, f"is_{kind}")():
            return kind
    return str(current_platform.device_type)


def cpu_router() -> Any:
    """The module of CPURouter; None where this release has none (0.26 routes as on other devices)."""
    try:
        return importlib.import_module("vllm.model_executor.layers.fused_moe.router.cpu_router")
    except ModuleNotFoundError:
        return None


def loads_g_idx() -> bool:
    """Whether a checkpoint's g_idx tensors reach the layers: 0.26 loads them, 0.32 drops them in a weight mapper."""
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    return not hasattr(QuantizationConfig, "get_checkpoint_weight_mapper")


def rank_and_world() -> tuple[int, int]:
    """This worker's rank and the world's size; (0, 1) before vLLM made its groups."""
    from vllm.distributed import parallel_state

    try:
        group = parallel_state.get_world_group()
    except AssertionError:
        return 0, 1
    return group.rank, group.world_size


def vllm_config() -> Any:
    """The VllmConfig in force. Raises where vLLM builds nothing just now."""
    from vllm.config import get_current_vllm_config

    return get_current_vllm_config()


def load_format(config: Any) -> str:
    """How a VllmConfig has weights loaded: auto, safetensors, dummy, …"""
    return str(getattr(getattr(config, "load_config", None), "load_format", "auto"))


def wants_routes(config: Any) -> bool:
    """Whether a VllmConfig asks for the routed experts of each token (0.26: model_config, 0.32: aux_output_config)."""
    holders = (getattr(config, name, None) for name in ("model_config", "aux_output_config"))
    return any(getattr(holder, "enable_return_routed_experts", False) for holder in holders)


def wrap_init_device(around: Callable[[Any, Callable[[], Any]], Any]) -> None:
    """Call `around(wrapper, initialise)` instead of WorkerWrapperBase.init_device; done once.

    Every executor of both releases calls it in the worker's process: after the plugins, before the model exists.
    """
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = WorkerWrapperBase.init_device
    if getattr(original, "_xpu_moe", False):
        return

    def init_device(self: Any) -> Any:
        return around(self, lambda: original(self))

    init_device._xpu_moe = True  # type: ignore[attr-defined]
    WorkerWrapperBase.init_device = init_device


def wrap_create_engine_config(after: Callable[[Any], None]) -> None:
    """Call `after(vllm_config)` on what EngineArgs.create_engine_config makes; done once."""
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config
    if getattr(original, "_xpu_moe", False):
        return

    def create_engine_config(self: Any, *arguments: Any, **keywords: Any) -> Any:
        config = original(self, *arguments, **keywords)
        after(config)
        return config

    create_engine_config._xpu_moe = True  # type: ignore[attr-defined]
    EngineArgs.create_engine_config = create_engine_config


def model_runner(wrapper: Any) -> Any:
    """The model runner below a WorkerWrapperBase; None where there is none."""
    return getattr(getattr(wrapper, "worker", None), "model_runner", None)
