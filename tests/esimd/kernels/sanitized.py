"""Cases for the stand-alone host programs: small, exactly sized buffers, one thread a work-item."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

from tests.esimd.kernels.cases import Shape, inputs, truth
from xpu_moe.esimd.host import build
from xpu_moe.esimd.host.emulate import as_float32
from xpu_moe.esimd.host.script import Counts, Script
from xpu_moe.esimd.kernels import instances, launch

NAMES = ("x", "w13", "w13_scale", "w2", "w2_scale")


def program(module: str, kernels: tuple[str, ...], kind: str, headers: Path = instances.FOLDER) -> Path:
    """A program with only the kernels named: sanitized code takes seconds an instance to compile."""
    whole = instances.modules()[module]
    some = tuple(i for i in whole.instances if i.name in kernels)
    assert len(some) == len(kernels), kernels
    return build.build(dataclasses.replace(whole, instances=some), kind, headers)


def raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.int16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()


@dataclasses.dataclass(frozen=True)
class MoeRun:
    """One layer, up then down, as a script. `logits`: routed by the kernel itself."""

    shape: Shape
    tokens: int
    dtype: str
    logits: bool = False

    @property
    def launches(self) -> tuple[launch.Launch, launch.Launch]:
        s = self.shape
        return (
            launch.up(self.dtype, self.tokens, s.hidden, s.inter, s.top_k, s.group),
            launch.down(self.dtype, self.tokens, s.hidden, s.inter, s.top_k, s.group),
        )

    @property
    def kernels(self) -> tuple[str, str]:
        up, down = self.launches
        return up.kernel, down.kernel

    def run(self, program: Path, folder: Path, seed: int = 0) -> tuple[np.ndarray, np.ndarray, dict[str, Counts]]:
        """(output, float64 truth, counts). The truth is None for `logits`."""
        s = self.shape
        folder.mkdir(exist_ok=True)
        arguments = inputs(s, self.tokens, getattr(torch, self.dtype))
        wanted = None if self.logits else truth(**arguments, nibble="u4", group_size=s.group).numpy()
        script = Script(folder)
        for name in NAMES:
            script.buffer(name, raw(arguments[name]), watch=True)
        routes = (self.tokens, s.top_k)
        if self.logits:
            draw = torch.Generator().manual_seed(3)
            script.buffer("logits", torch.randn(self.tokens, s.experts, generator=draw).numpy())
            script.buffer("bias", torch.randn(s.experts, generator=draw).numpy())
            script.buffer("weights", np.empty(routes, np.float32), poison=True)
            script.buffer("ids", np.empty(routes, np.int32), poison=True)
        else:
            script.buffer("weights", arguments["topk_weights"].numpy())
            script.buffer("ids", arguments["topk_ids"].numpy())
        script.buffer("hidden", np.empty((*routes, s.inter), np.float32), watch=True, poison=True)
        script.buffer("out", np.empty((self.tokens, s.hidden), np.uint16), watch=True, poison=True)
        up, down = self.launches
        sizes = {
            "tokens": self.tokens, "hidden_size": s.hidden, "intermediate_size": s.inter, "num_experts": s.experts,
            "top_k": s.top_k, "x_stride": s.hidden, "out_stride": s.hidden, "route_scale": 1.0,
        }  # fmt: skip
        pointers = {name: name for name in (*NAMES, "hidden", "out")}
        flags = launch.flags(logits=self.logits, bias=self.logits)
        router = {"logits": None, "bias": None, "topk_ids": "ids", "route_weights": None, "route_ids": None}
        if self.logits:
            router = {
                "logits": "logits", "bias": "bias", "topk_ids": None, "route_weights": "weights", "route_ids": "ids",
            }  # fmt: skip
        script.launch(up, "moe_u4_up", sizes | pointers | router | {"split": up.split, "flags": flags}, seed)
        router = {"topk_ids": "ids", "topk_weights": "weights"}
        script.launch(
            down, "moe_u4_down", sizes | pointers | router | {"split": down.split, "flags": launch.flags()}, seed
        )
        arrays, counts = script.run(program, "out")
        return as_float32(arrays["out"], self.dtype), wanted, counts


# narrow enough for hundreds of threads, wide enough for several steps and two threads a pair
HALF_WIDE = Shape("wide", 128, 128, hidden=512, experts=8, top_k=4, pool=8)
BF16_NARROW = Shape("narrow", 96, 32, hidden=160, experts=8, top_k=3, pool=8)
RUNS = {
    "one-token": MoeRun(HALF_WIDE, 1, "float16"),
    "four-tokens": MoeRun(HALF_WIDE, 4, "float16"),
    "logits": MoeRun(HALF_WIDE, 3, "float16", logits=True),
    "bfloat16-narrow": MoeRun(BF16_NARROW, 2, "bfloat16"),
}
