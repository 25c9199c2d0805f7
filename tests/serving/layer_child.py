"""Run in a child: `python layer_child.py LAYER OUT MODEL…`: load each model, run its first MoE layer on LAYER's inputs.

Needs of vLLM its Python files alone, so that a release without a build for this machine can be asked: the model is
made and loaded by vLLM, the layer's arithmetic is ours. OUT gets {"version", "models": {path: {"out", "method",
"parameters"}}} by torch.save.
"""

from __future__ import annotations

import os
import socket
import sys


def main(layer_file: str, out_file: str, *models: str) -> None:
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_CPU_KVCACHE_SPACE="1")
    import torch
    import vllm
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader import get_model
    from vllm.v1.worker.workspace import init_workspace_manager

    given = torch.load(layer_file, weights_only=True)
    found: dict = {"version": vllm.__version__, "models": {}}
    for number, model in enumerate(models):
        config = EngineArgs(
            model=model, enforce_eager=True, max_model_len=512, dtype="float32"
        ).create_engine_config()  # fmt: skip
        with set_current_vllm_config(config):
            if number == 0:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    port = probe.getsockname()[1]
                init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
                initialize_model_parallel(1, 1)
                init_workspace_manager(torch.device("cpu"), 1)
            loaded = get_model(vllm_config=config)
            layer = next(m for m in loaded.modules() if type(m).__name__ == "RoutedExperts")
            with torch.inference_mode():
                out = layer.quant_method.apply(layer, *given, None, None)
        found["models"][model] = {
            "out": out.clone(),
            "method": type(layer.quant_method).__name__,
            "parameters": sorted(layer._parameters),
        }
    torch.save(found, out_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
