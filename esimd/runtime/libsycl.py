"""Which libsycl this process holds, and where the headers for it are.

Two copies of libsycl share no queue and no context: a kernel library must be built for the one that torch brought, and
a second one must never be loaded. What is loaded is read from /proc/self/maps, not guessed from packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from xpu_moe import toolenv

MAPS = Path("/proc/self/maps")
_LIBRARY = re.compile(r"libsycl(?:-preview)?\.so\.(\d+)(?:\.[\d.]+)?$")

# libsycl's major version -> the newest release of intel-sycl-rt whose headers and OpenCL adapter are known to work.
# 2026.2.0 is left out: its intel-cmplr-lib-ur has no OpenCL adapter.
RELEASES = {8: "2025.3.3", 9: "2026.1.2"}


class LibsyclError(RuntimeError):
    """The process holds no libsycl, two of them, or one that nothing can be built for."""


@dataclass(frozen=True)
class Loaded:
    """The libsycl of this process: the file (links resolved) and the major version of its soname."""

    path: Path
    major: int


def loaded(maps: Iterable[str] | None = None) -> Loaded | None:
    """The libsycl mapped into this process, None where there is none. Raises LibsyclError when there are two."""
    lines = MAPS.read_text().splitlines() if maps is None else maps
    found: dict[str, int] = {}
    for line in lines:
        path = line.split(maxsplit=5)[5].strip() if len(line.split(maxsplit=5)) == 6 else ""
        match = _LIBRARY.search(path.removesuffix(" (deleted)"))
        if match:
            found[path] = int(match.group(1))
    if len(found) > 1:
        paths = " and ".join(sorted(found))
        raise LibsyclError(
            f"libsycl: got {len(found)} copies in this process ({paths}), wanted one: queues of one mean nothing to "
            "the other. Remove the second from LD_LIBRARY_PATH or from the environment (pip list | grep -i sycl; a "
            "sourced oneAPI setvars.sh does this too)"
        )
    return next((Loaded(Path(path), major) for path, major in found.items()), None)


def require_loaded() -> Loaded:
    """The libsycl of this process. Raises LibsyclError where none is loaded or its version is unknown."""
    found = loaded()
    if found is None:
        raise LibsyclError(
            "libsycl: none is loaded in this process, wanted the one of an XPU build of torch (import it)"
        )
    if found.major not in RELEASES:
        known = ", ".join(f"libsycl.so.{major}" for major in RELEASES)
        raise LibsyclError(f"libsycl: got {found.path} (major version {found.major}), wanted one of {known}")
    return found


def headers(of: Loaded) -> Path:
    """The include folder whose sycl/version.hpp is of `of`'s major version.

    First the folder beside the library (the wheel intel-sycl-rt and oneAPI both have lib/ beside include/), else a tool
    environment with that release. Raises toolenv.ToolEnvironmentError.
    """
    for root in (of.path.parent.parent, of.path.resolve().parent.parent):
        include = root / "include"
        if header_major(include) == of.major:
            return include
    release = RELEASES[of.major]
    root = toolenv.ensure("sycl-headers", [f"intel-sycl-rt=={release}"], no_deps=True)
    return root / "include"


def header_major(include: Path) -> int | None:
    """The libsycl major version that headers belong to, None where they are not there."""
    try:
        text = (include / "sycl" / "version.hpp").read_text()
    except OSError:
        return None
    match = re.search(r"__LIBSYCL_MAJOR_VERSION\s+(\d+)", text)
    return int(match.group(1)) if match else None
