"""Runtime libraries: where the engine would find them, their versions, and the variables whose names they contain.

What is really loaded is told by `--deep` (the child's process map); these are the first copies on the search path.
"""

from __future__ import annotations

import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xpu_moe.doctor.collect.private import private
from xpu_moe.doctor.collect.vllm_source import variables as variables_of_vllm
from xpu_moe.doctor.collect.where import Where, entries, known, text

WANTED = ("libsycl", "libccl", "libze_loader", "libze_intel_gpu", "libur_loader", "libnccl")
_SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/local/lib", "/usr/lib64", "/usr/lib")
_NAME = re.compile(r"(lib[a-z_]+)\.so(?:\.[\d.]+)?\Z")
_VARIABLE = re.compile(rb"\bCCL_[A-Z0-9_]{3,80}\b")
_CCL_VERSION = re.compile(rb"\b(20\d\d\.\d{1,2}\.\d{1,2}(?:\.\d+)?)\b")
# package of Debian -> the library whose version it tells
_DEBIAN = {
    "libze-intel-gpu1": "libze_intel_gpu", "intel-level-zero-gpu": "libze_intel_gpu",
           "intel-opencl-icd": "libze_intel_gpu", "level-zero": "libze_loader", "libze1": "libze_loader",
}  # fmt: skip
_MOST = 512 << 20


def facts(where: Where) -> dict[str, Any]:
    """`libraries`: one row for the first copy of each wanted library."""
    debian = _debian(where)
    found: dict[str, dict[str, Any]] = {}
    for file in _candidates(where):
        named = _NAME.match(file.name)
        if named is None or named.group(1) not in WANTED or named.group(1) in found:
            continue
        found[named.group(1)] = row(file, debian.get(named.group(1)))
    vllm = variables_of_vllm()
    rows = [*found.values(), *([vllm] if vllm else [])]
    return {"libraries": rows} if rows else {}


def row(file: Path, version: str | None = None) -> dict[str, Any]:
    """One library: the name by which it is loaded, a path without personal parts, version, names of variables."""
    try:
        real = file.resolve(strict=True)
    except (OSError, RuntimeError):
        real = file
    base = file.name.split(".so")[0]
    names = variables(real) if base == "libccl" else None
    return known(
        {
            "name": _soname(file),
            "path": private(str(real)),
            "version": version or _version(base, real),
            "env_names": sorted(names) if names else None,
        }
    )


def variables(file: Path) -> set[str]:
    """Names of CCL_* variables that stand in a file."""
    try:
        with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if len(content) > _MOST:
                return set()
            return {name.decode() for name in _VARIABLE.findall(content)}
    except (OSError, ValueError):
        return set()


def _soname(file: Path) -> str:
    """`libsycl.so.8.0.0` is loaded as `libsycl.so.8`."""
    base, _, rest = file.name.partition(".so")
    parts = rest.strip(".").split(".")
    keep = 2 if base == "libccl" else 1
    return f"{base}.so" + "".join(f".{part}" for part in parts[:keep] if part)


def _candidates(where: Where) -> Iterator[Path]:
    """Files in the order in which the loader would meet them."""
    for folder in _folders(where):
        for base in WANTED:
            yield from entries(folder, f"{base}.so.*")


def _folders(where: Where) -> list[Path]:
    """Where the loader looks: the environment's folders, the interpreter's, the system's."""
    folders = [Path(part) for part in where.environ.get("LD_LIBRARY_PATH", "").split(":") if part.startswith("/")]
    if where.root == Path("/"):
        folders.append(Path(sys.prefix) / "lib")
        site = Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        folders += [site / "nvidia/nccl/lib", site / "torch/lib"]
    return folders + [where.path(folder) for folder in _SYSTEM]


def compute_runtime(where: Where) -> bool | None:
    """Is Intel's Level Zero driver installed? None where the machine has no folder of libraries that we know."""
    if not any(where.path(folder).is_dir() for folder in _SYSTEM):
        return None
    folders = [*_folders(where), where.path("/run/opengl-driver/lib")]  # the last: NixOS
    try:
        cache = where.path("/etc/ld.so.cache").read_bytes()
    except OSError:
        cache = b""
    return b"libze_intel_gpu.so" in cache or any(entries(folder, "libze_intel_gpu.so*") for folder in folders)


def _version(base: str, real: Path) -> str | None:
    if base == "libccl":
        return _distribution("oneccl") or _scan(real)
    if base == "libsycl":
        return _distribution("intel-sycl-rt")
    if base == "libnccl":
        return _distribution("nvidia-nccl-cu13") or _distribution("nvidia-nccl-cu12")
    if base == "libze_intel_gpu":
        return None  # its file name carries the ABI's version, not the driver's
    tail = real.name.partition(".so.")[2]
    return tail if tail.count(".") >= 2 else None


def _distribution(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _scan(file: Path) -> str | None:
    """oneCCL's version from its build string."""
    try:
        with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.find(b"CCL_VERSION")
            found = _CCL_VERSION.search(content[max(0, at - 4096) : at + 4096]) if at >= 0 else None
    except (OSError, ValueError):
        return None
    return found.group(1).decode() if found else None


def _debian(where: Where) -> dict[str, str]:
    found: dict[str, str] = {}
    package = None
    for line in (text(where.path("/var/lib/dpkg/status"), 32 << 20) or "").splitlines():
        if line.startswith("Package: "):
            package = _DEBIAN.get(line[9:])
        elif package and line.startswith("Version: "):
            found.setdefault(package, line[9:].split("-")[0].split(":")[-1])
    return found
