"""Which template instances exist, in which module: what the SPIR-V build, the host build and the report walk over.

A module holds what one layer needs: one dtype, one group size. The instances in it: steps that divide the row or not,
tiles of one token or of up to four.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xpu_moe.esimd.kernels import abi, launch

FOLDER = Path(__file__).parent
_TYPES = {"f16": "half", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Instance:
    """One kernel of a module: `name` = `family` for the template arguments `arguments`."""

    name: str
    family: str
    dtype: str  # "f16", "bf16", "" where the kernel has no activations
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    name: str
    headers: tuple[str, ...]
    instances: tuple[Instance, ...]


def _moe(dtype: str, group_size: int) -> Module:
    stem = f"{dtype}_g{group_size}"
    found = []
    for family, wide in (("moe_u4_up", launch.UP_STEP), ("moe_u4_down", launch.DOWN_STEP)):
        for step in dict.fromkeys((wide, group_size)):
            for tile in (1, launch.TILE_TOKENS):
                arguments = (_TYPES[dtype], str(group_size), str(step), str(tile))
                found.append(Instance(f"{family}_{stem}_k{step}_t{tile}", family, dtype, arguments))
    return Module(f"moe_u4_{stem}", ("moe_u4_up.hpp", "moe_u4_down.hpp"), tuple(found))


def modules() -> dict[str, Module]:
    """Every module by name."""
    found = [_moe(dtype, group) for dtype in _TYPES for group in launch.GROUP_SIZES]
    found.append(
        Module(
            "route_sigmoid_topk",
            ("route_sigmoid_topk.hpp",),
            (Instance("route_sigmoid_topk", "route_sigmoid_topk", ""),),
        )
    )
    for dtype, kind in _TYPES.items():  # kernels with and without half never share a module: the compiler splits them
        norms = [Instance(f"{family}_{dtype}", family, dtype, (kind,)) for family in ("qk_rms_partial", "qk_rms_apply")]
        found.append(Module(f"qk_rms_{dtype}", ("qk_rms.hpp",), tuple(norms)))
    return {module.name: module for module in found}


# C++ types of the arguments whose element type is not `T`
_POINTERS = {
    "x": "const T*", "out": "T*", "qkv": "const T*", "q_out": "T*", "k_out": "T*",
    "w13": "const uint8_t*", "w2": "const uint8_t*", "w13_scale": "const uint16_t*", "w2_scale": "const uint16_t*",
    "topk_ids": "const void*", "topk_weights": "const void*", "logits": "const void*", "bias": "const void*",
    "q_weight": "const void*", "k_weight": "const void*", "sums": "float*", "route_weights": "float*",
    "weights": "float*", "route_ids": "int*", "ids": "int*", "hidden": "float*",
}  # fmt: skip


def source(module: Module) -> str:
    """The translation unit of a module: its headers, one entry point an instance, and the table for the host run."""
    lines = [f'#include "{header}"' for header in module.headers] + ["using xpu_moe::half;", "using xpu_moe::bfloat16;"]
    for instance in module.instances:
        arguments = abi.SIGNATURES[instance.family]
        kinds = {"int": "int", "float": "float"}
        types = [kinds.get(a.kind) or _POINTERS[a.name] for a in arguments]
        parameters = ", ".join(
            f"{t.replace('T*', _TYPES.get(instance.dtype, 'T') + '*')} {a.name}" for t, a in zip(types, arguments)
        )
        template = f"<{', '.join(instance.arguments)}>" if instance.arguments else ""
        names = ", ".join(a.name for a in arguments)
        # the body lives in xpu_moe:: under the family's name, which an instance without template arguments shares
        lines.append(
            f"XPU_MOE_KERNEL void {instance.name}({parameters}) {{ xpu_moe::{instance.family}{template}({names}); }}"
        )
    lines.append("#ifdef XPU_MOE_HOST")
    lines += [f"XPU_MOE_HOST_ENTRY({instance.name})" for instance in module.instances]
    lines.append("#endif")
    return "\n".join(lines) + "\n"
