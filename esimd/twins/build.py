"""The twins' SPIR-V, built by the same compiler as the ESIMD kernels', with a manifest that says from which sources."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from xpu_moe import streams
from xpu_moe.esimd.tools import programs
from xpu_moe.esimd.tools.spirv import KERNEL_PREFIX, compile_text

SOURCES = Path(__file__).parent
FOLDER = SOURCES / "spirv"
MANIFEST = FOLDER / "manifest.json"
MODULES = ("moe_u4", "qk_rms", "route_sigmoid_topk")  # each from NAME.cpp
FLAGS = ("-O2", "-Wall", "-Werror")


def source_hash(module: str) -> str:
    """Changes with whatever the module's SPIR-V depends on: its source, every header, compiler, flags."""
    digest = hashlib.sha256()
    for file in (SOURCES / f"{module}.cpp", *sorted(SOURCES.glob("*.hpp")), SOURCES.parent / "kernels" / "abi.hpp"):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update("\0".join((*programs.COMPILER, *FLAGS)).encode())
    return digest.hexdigest()


def stale() -> dict[str, str]:
    """Module -> why its committed SPIR-V is not what the sources would give. Empty when all is fresh."""
    known = json.loads(MANIFEST.read_text(encoding="utf-8"))["modules"] if MANIFEST.exists() else {}
    reasons = {}
    for name in MODULES:
        file, row = FOLDER / f"{name}.spv", known.get(name)
        if row is None or not file.exists():
            reasons[name] = "never built"
        elif row["source"] != source_hash(name):
            reasons[name] = "the sources changed after it was built"
        elif row["spirv"] != hashlib.sha256(file.read_bytes()).hexdigest():
            reasons[name] = "the file is not the one that was built"
    return reasons | {name: "no such module" for name in known if name not in MODULES}


def build() -> dict:
    """Compile every twin and write the manifest; returns it. Raises CompileError, ToolEnvironmentError."""
    FOLDER.mkdir(exist_ok=True)
    rows = {}
    for number, name in enumerate(MODULES, 1):
        streams.warn(f"xpu_moe: {number}/{len(MODULES)} {name}")
        text = (SOURCES / f"{name}.cpp").read_text(encoding="utf-8")
        compiled = compile_text(text, (*FLAGS, f"-I{SOURCES}"))
        (FOLDER / f"{name}.spv").write_bytes(compiled.spirv)
        rows[name] = {
            "source": source_hash(name),
            "spirv": hashlib.sha256(compiled.spirv).hexdigest(),
            "bytes": len(compiled.spirv),
            "kernels": sorted(kernel.removeprefix(KERNEL_PREFIX) for kernel in compiled.kernels),
        }
    made = {"compiler": list(programs.COMPILER), "flags": list(FLAGS), "modules": rows}
    MANIFEST.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return made
