"""The two kinds of kernels with one set of argument lists: ESIMD, and its SIMT twins."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from xpu_moe.esimd.kernels import launch as esimd_shapes
from xpu_moe.esimd.twins import launch as twin_shapes

_ESIMD = Path(esimd_shapes.__file__).parents[1]


class KernelMissing(RuntimeError):
    """A module or a kernel is not where it should be, or the device cannot run it; the message says what to do."""


@dataclass(frozen=True, eq=False)  # a key of caches on the hot road: hashed by identity
class Room:
    """Kernels of one kind: launch shapes, a folder of SPIR-V modules, what they ask of a device and of its driver.

    `routes_in_up`: `moe_u4_up` takes logits; where it does not, a routed program has `route_sigmoid_topk` in front.
    """

    name: str
    shapes: ModuleType
    folder: Path
    options: str  # for the driver's compiler
    routes_in_up: bool
    needs_esimd: bool = False
    sub_group: int = 0  # a size that the device must offer
    why: str = ""
    build: str = ""  # the command that makes the modules

    def lacking(self, device: dict[str, Any]) -> str | None:
        """Why a device (Library.device's facts) cannot run these modules, None where it can."""
        who = f"{device['name']} (driver {device['driver']})"
        if not device["usm_device"]:
            return f"{who} has no device USM"
        if self.needs_esimd and not device["esimd"]:
            return f"{who} lacks the aspect ext_intel_esimd: its driver has no vector back end"
        if self.sub_group and self.sub_group not in device["sub_group_sizes"]:
            return f"{who} has no sub-group of {self.sub_group}, only {device['sub_group_sizes']}"
        return None

    def missing(self, module: str) -> str | None:
        """One sentence where the module's file is not there, else None."""
        if (self.folder / f"{module}.spv").exists():
            return None
        return f"{self.folder / module}.spv is missing; make it with `{self.build}`"

    def read(self, module: str) -> bytes:
        """A module's SPIR-V, compared with the manifest (a driver may crash over a damaged one). KernelMissing."""
        missing = self.missing(module)
        if missing:
            raise KernelMissing(f"{self.name} kernels: {missing}, or reinstall the wheel")
        file, manifest = self.folder / f"{module}.spv", self.folder / "manifest.json"
        image = file.read_bytes()
        rows = json.loads(manifest.read_text(encoding="utf-8"))["modules"] if manifest.exists() else {}
        if rows.get(module, {}).get("spirv") != hashlib.sha256(image).hexdigest():
            raise KernelMissing(
                f"{self.name} kernels: {file} is not the file that {manifest.name} describes; make it with "
                f"`{self.build}`, or reinstall the wheel"
            )
        return image


# -vc-codegen: a module that travels as bare SPIR-V has no property that says ESIMD, so the driver is told.
ESIMD = Room(
    "esimd", esimd_shapes, _ESIMD / "kernels" / "spirv", "-vc-codegen", routes_in_up=True, needs_esimd=True,
    why="ESIMD kernels: one hardware thread a tile, block messages", build="python -m xpu_moe.esimd build",
)  # fmt: skip
TWINS = Room(
    "sycl_twin", twin_shapes, _ESIMD / "twins" / "spirv", "", routes_in_up=False, sub_group=twin_shapes.LANES,
    why="SIMT twins of the ESIMD kernels, sub-groups of 16", build="python -m xpu_moe.esimd build-twins",
)  # fmt: skip
