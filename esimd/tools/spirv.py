"""Kernel modules to SPIR-V, and the manifest that says from which sources."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from xpu_moe import streams
from xpu_moe.esimd.kernels import instances
from xpu_moe.esimd.kernels.instances import Module
from xpu_moe.esimd.tools import programs

FOLDER = instances.FOLDER / "spirv"
MANIFEST = FOLDER / "manifest.json"
_JIT = Path(__file__).with_name("jit.py")
FLAGS = ("-O2",)
KERNEL_PREFIX = "__sycl_kernel_"  # what the compiler puts in front of an entry point's name


class CompileError(RuntimeError):
    """The SPIR-V compiler refused a source; the message is its text."""


@dataclass(frozen=True)
class Compiled:
    """One module as SPIR-V. `kernels` are names as the driver sees them."""

    spirv: bytes
    kernels: tuple[str, ...]
    log: str = ""


def source_hash(module: Module) -> str:
    """Changes with whatever the module's SPIR-V depends on: headers, instances, compiler, flags."""
    digest = hashlib.sha256()
    for header in sorted(instances.FOLDER.glob("*.hpp")):
        digest.update(header.name.encode() + b"\0" + header.read_bytes() + b"\0")
    digest.update("\0".join((instances.source(module), *programs.COMPILER, *FLAGS)).encode())
    return digest.hexdigest()


def compile_text(text: str, flags: tuple[str, ...] = FLAGS) -> Compiled:
    """SYCL or ESIMD source to SPIR-V; `#include` finds the kernels' folder. Raises CompileError."""
    (library,) = sorted((programs.compiler_root() / "lib").glob("libsycl-jit.so*"))[:1]
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "module.cpp"), Path(folder, "module.spv")
        source.write_text(text, encoding="utf-8")
        command = [sys.executable, str(_JIT), str(library), str(source), str(output)]
        done = subprocess.run([*command, f"-I{instances.FOLDER}", *flags], capture_output=True, text=True)
        if done.returncode:
            raise CompileError(done.stderr.strip()[-4000:] or f"exit {done.returncode} of the SPIR-V compiler")
        answer = json.loads(done.stdout.splitlines()[-1])
        images = answer["images"]
        if len(images) != 1:
            raise CompileError(f"the source gave {len(images)} images ({images}), wanted 1: split the module by aspect")
        return Compiled(output.read_bytes(), tuple(images[0]["kernels"]), answer["log"])


def compile_module(module: Module) -> Compiled:
    """One module. Raises CompileError, also where a kernel is missing from what came out."""
    compiled = compile_text(instances.source(module))
    wanted = {KERNEL_PREFIX + instance.name for instance in module.instances}
    if set(compiled.kernels) != wanted:
        raise CompileError(f"{module.name}: got kernels {sorted(compiled.kernels)}, wanted {sorted(wanted)}")
    return compiled


def manifest() -> dict:
    """The committed manifest: {"modules": {name: {"source", "spirv", "kernels", "bytes"}}, "compiler"}."""
    return json.loads(MANIFEST.read_text(encoding="utf-8"))


def stale() -> dict[str, str]:
    """Module -> why its committed SPIR-V is not what the sources would give. Empty when all is fresh."""
    known = manifest()["modules"] if MANIFEST.exists() else {}
    reasons = {}
    for name, module in instances.modules().items():
        file, row = FOLDER / f"{name}.spv", known.get(name)
        if row is None or not file.exists():
            reasons[name] = "never built"
        elif row["source"] != source_hash(module):
            reasons[name] = "the sources changed after it was built"
        elif row["spirv"] != hashlib.sha256(file.read_bytes()).hexdigest():
            reasons[name] = "the file is not the one that was built"
    reasons |= {name: "no such module" for name in known if name not in instances.modules()}
    return reasons


def build(names: list[str]) -> dict:
    """Compile the named modules into the kernels' folder and write the manifest; returns the manifest."""
    FOLDER.mkdir(exist_ok=True)
    modules = instances.modules()
    rows = {k: v for k, v in (manifest()["modules"] if MANIFEST.exists() else {}).items() if k in modules}
    for number, name in enumerate(names, 1):
        streams.warn(f"xpu_moe: {number}/{len(names)} {name}")
        compiled = compile_module(modules[name])
        (FOLDER / f"{name}.spv").write_bytes(compiled.spirv)
        rows[name] = {
            "source": source_hash(modules[name]),
            "spirv": hashlib.sha256(compiled.spirv).hexdigest(),
            "bytes": len(compiled.spirv),
            "kernels": [k.removeprefix(KERNEL_PREFIX) for k in compiled.kernels],
        }
    for file in FOLDER.glob("*.spv"):
        if file.stem not in modules:
            file.unlink()
    made = {"compiler": list(programs.COMPILER), "flags": list(FLAGS), "modules": dict(sorted(rows.items()))}
    MANIFEST.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return made
