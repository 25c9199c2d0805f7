"""Compiles what our code launches on a Battlemage card with Intel's Triton, without a card.

    for_battlemage.py FOLDER     FOLDER: the SPIR-V of each kernel; stdout: JSON, what is offered and a row each launch

Run by battlemage.py in a process that has triton-xpu. The backends' own `run` is called with tensors that say "xpu" and
have no memory, and Triton's own launch code specialises, takes options and compiles; what would start the kernel is
left away. So tiles, warps, dtypes and alignments are those of a real call.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from xpu_moe.ops.contract import Case
from xpu_moe.ops.moe_fp8_tensor import Fp8TensorWeights
from xpu_moe.triton import grouped, ops, rms

HIDDEN, EXPERTS, TOP_K = 3072, 256, 8  # MiniMax-M2

# What torch.xpu.get_device_capability answers for a B70, as far as Triton looks: the sub-group sizes and extensions are
# those of `ocloc query CL_DEVICE_EXTENSIONS -device bmg-g31` (release 26.27), 32 Xe cores of 8 vector engines.
B70 = {
    "architecture": 0x500800000, "name": "Intel(R) Arc(TM) Pro B70 Graphics", "platform_name": "Intel(R) Level-Zero",
    "vendor": "Intel(R) Corporation", "version": "1.15", "gpu_eu_count": 256, "gpu_subslice_count": 32,
    "max_work_group_size": 1024, "max_num_sub_groups": 64, "sub_group_sizes": [16, 32], "has_fp64": True,
    "has_subgroup_matrix_multiply_accumulate": True, "has_subgroup_matrix_multiply_accumulate_tensor_float32": True,
    "has_subgroup_2d_block_io": True, "has_bfloat16_conversions": True,
}  # fmt: skip


class Card:
    """A Triton driver of a card that is not there."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("xpu", B70, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class OnXpu(TorchFunctionMode):
    """Tensors for "xpu" are made without memory and say that they are there: this torch is built without XPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func == torch.Tensor.device.__get__:
            return torch.device("xpu", 0)
        if "device" in kwargs:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


class Placed:
    """A tensor as Triton's launch code sees one: dtype and address. Allocations are aligned to 512 bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self.address = (1 << 40) + tensor.storage_offset() * tensor.element_size()

    def data_ptr(self) -> int:
        return self.address


def install(launched: Callable) -> None:
    """Make launches compile and start nothing; `launched` gets (name, grid, compiled kernel) of each."""
    # This build asks the SYCL runtime for the architecture's name; it knows BMG-G21's alone, G31's is "" to it.
    module = backends["intel"].compiler.__init__.__globals__
    module["compile_module_from_src"] = lambda text, name: SimpleNamespace(parse_device_arch=lambda number: "")
    triton.runtime.driver.set_active(Card())
    run = JITFunction.run

    def compiled(self, *args, grid, warmup, **named):
        args = [Placed(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        kernel = run(self, *args, grid=grid, warmup=True, **named)
        launched(self.__name__, grid, kernel)
        return kernel

    JITFunction.run = compiled


def _new(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="xpu")


@dataclass(frozen=True)
class Product:
    """One call of a grouped product at MiniMax's sizes."""

    scheme: str
    tokens: int
    inter: int
    dtype: str = "float16"
    group: int = 128
    activation: str = "silu"
    prepared: bool = False
    nibble: str = "u4"

    def __str__(self) -> str:
        differs = {
            f"groups of {self.group}": self.group != 128, self.activation: self.activation != "silu",
            self.nibble: self.nibble != "u4", "prepared": self.prepared,
        }  # fmt: skip
        return ", ".join((self.scheme, *(word for word, so in differs.items() if so)))

    def call(self) -> None:
        products(self)


@dataclass(frozen=True)
class Norm:
    """Both halves of the Q/K norm on a rank of four."""

    tokens: int
    inter: int = 0
    dtype: str = "float16"

    def __str__(self) -> str:
        return "Q/K norm"

    def call(self) -> None:
        norm(self.tokens, 1536, 256, getattr(torch, self.dtype))


# 128 tokens bring 4 routes an expert, 2048 bring 64; I is 384 on each of four cards and 1536 on one.
CASES = (
    *(Product("int4", m, i) for m in (128, 2048) for i in (384, 1536)),
    Product("int4", 128, 1536, "bfloat16"), Product("int4", 2048, 384, "bfloat16"),
    Product("int4", 2048, 384, nibble="s4"), Product("int4", 2048, 384, group=32),
    Product("int4", 2048, 384, activation="relu2_no_mul"),
    Product("fp8_block", 128, 384), Product("fp8_block", 2048, 384), Product("fp8_block", 2048, 1536, "bfloat16"),
    Product("fp8_block", 2048, 384, prepared=True),
    Product("fp8_tensor", 128, 384), Product("fp8_tensor", 2048, 384, "bfloat16"),
    Norm(128), Norm(2048, dtype="bfloat16"),
)  # fmt: skip
# With CUDA's tiles and in float32, these show that the checks of test_for_battlemage.py can fail.
PLANTED = (Product("int4", 2048, 384), Product("int4", 128, 384, "float32", activation="relu2_no_mul"))


def products(case: Product) -> None:
    dtype, activation, inter, tokens = getattr(torch, case.dtype), case.activation, case.inter, case.tokens
    x, out = (_new(tokens, HIDDEN, dtype=dtype) for _ in range(2))
    weights, ids = _new(tokens, TOP_K, dtype=torch.float32), _new(tokens, TOP_K, dtype=torch.int32)
    rows = inter if activation.endswith("no_mul") else 2 * inter
    single, half, byte, e4m3 = torch.float32, torch.float16, torch.uint8, torch.float8_e4m3fn
    if case.scheme == "int4":  # the scales are the checkpoint's fp16, whatever the activations are
        group = case.group
        grouped.U4().run(
            x, _new(EXPERTS, rows, HIDDEN // 2, dtype=byte), _new(EXPERTS, rows, HIDDEN // group, dtype=half),
            _new(EXPERTS, HIDDEN, inter // 2, dtype=byte), _new(EXPERTS, HIDDEN, inter // group, dtype=half),
            weights, ids, nibble=case.nibble, group_size=group, activation=activation, layout="n_major", out=out,
        )  # fmt: skip
        return
    w13, w2 = _new(EXPERTS, rows, HIDDEN, dtype=e4m3), _new(EXPERTS, HIDDEN, inter, dtype=e4m3)
    if case.scheme == "fp8_tensor":
        one = _new(dtype=single)
        scales = (_new(EXPERTS, dtype=single) for _ in range(2))
        held = Fp8TensorWeights(w13, next(scales), w2, next(scales), one, one, activation)
        grouped.Fp8Tensor().run(x, held, weights, ids, out=out)
        return
    x_scale = None
    if case.prepared:
        x, x_scale = _new(tokens, HIDDEN, dtype=e4m3), _new(HIDDEN // 128, tokens, dtype=single).t()
    grouped.Fp8Block().run(
        x, x_scale, w13, _new(EXPERTS, rows // 128, HIDDEN // 128, dtype=single), w2,
        _new(EXPERTS, HIDDEN // 128, inter // 128, dtype=single), weights, ids, activation=activation,
        layout="n_major", out=out,
    )  # fmt: skip


def norm(tokens: int, q_size: int, kv_size: int, dtype: torch.dtype) -> None:
    qkv, sums = _new(tokens, q_size + 2 * kv_size, dtype=dtype), _new(tokens, 2, dtype=torch.float32)
    rms.Partial().run(qkv, q_size=q_size, kv_size=kv_size, out=sums)
    rms.Apply().run(
        qkv, sums, _new(q_size, dtype=dtype), _new(kv_size, dtype=dtype), q_size=q_size, kv_size=kv_size, eps=1e-6,
        world_size=4, q_out=qkv[:, :q_size], k_out=qkv[:, q_size : q_size + kv_size],
    )  # fmt: skip


def row(case: Product | Norm, name: str, grid: tuple, kernel, folder: Path) -> dict:
    """What is known of a launch before the back end."""
    code, options, text = kernel.asm["spv"], kernel.metadata, kernel.asm["ttgir"]
    file = folder / f"{name}-{hashlib.sha256(code).hexdigest()[:12]}.spv"
    file.write_bytes(code)
    return {
        "case": str(case), "tokens": case.tokens, "inter": case.inter, "dtype": case.dtype, "kernel": name,
        "grid": list(grid), "warps": options.num_warps, "lanes": options.threads_per_warp, "slm": options.shared,
        "flags": options.build_flags, "spirv": str(file),
        "dots": re.findall(r"= tt\.dot .*?: tensor<(\S+?), .*?> \* tensor<(\S+?), ", text),
        "matrix_engine": "#triton_intel_gpu.dpas" in text,
    }  # fmt: skip


def offered() -> dict[str, str]:
    """Operator -> why it is served on a B70; with a leading "no: " where it is not."""
    answers = {}
    for backend in ops.BACKENDS:
        scheme = {"moe_u4": "int4", "moe_fp8_block": "fp8_block", "moe_fp8_tensor": "fp8_tensor"}.get(backend.op, "")
        case = Case(
            backend.op, "xpu", "bmg-g31", "float16", 2048, 0, HIDDEN, 384, EXPERTS, TOP_K, 128, "u4", scheme=scheme
        )
        support = backend.supports(case)
        answers[backend.op] = support.reason if support else f"no: {support.reason}"
    return answers


def main(folder: Path, cases: tuple[Product | Norm, ...]) -> None:
    rows: list[dict] = []
    current: list = [None]
    install(lambda name, grid, kernel: rows.append(row(current[0], name, grid, kernel, folder)))
    for case in cases:
        current[0] = case
        with OnXpu():
            case.call()
    print(json.dumps({"offered": offered(), "launches": rows}))


if __name__ == "__main__":
    if "--planted" in sys.argv:
        tiles = grouped.tiles
        grouped.tiles = lambda *case: tiles(*case[:5], "cuda")
    main(Path(sys.argv[1]), PLANTED if "--planted" in sys.argv else CASES)
