"""A card that is not there: Intel's driver told to plan for one and to send nothing to it.

The driver's own debugging keys do that: a product and its sizes in place of what a kernel module would tell, and a
command streamer that drops every command buffer. All else is real: SYCL, Unified Runtime, the Level Zero loader, the
driver, its compiler at run time, its encoding of every launch. Kernels do not run, so no result is right and no time
means anything on the device's side.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xpu_moe import cache
from xpu_moe.esimd.nullcard.packages import Driver, Unavailable


@dataclass(frozen=True)
class Card:
    """What the driver is told: product, PCI id, architecture, slices x sub-slices x vector engines, GiB of memory."""

    product: str
    device_id: str
    architecture: tuple[int, int, int]  # "20.2.0" of ocloc ids
    sizes: tuple[int, int, int]
    memory_gib: int

    def keys(self) -> dict[str, str]:
        """The driver's debugging keys."""
        release, variant, revision = self.architecture
        return {
            "NEOReadDebugKeys": "1", "ProductFamilyOverride": self.product, "ForceDeviceId": self.device_id,
            "OverrideHwIpVersion": str(release << 22 | variant << 14 | revision),
            "HardwareInfoOverride": "x".join(map(str, self.sizes)), "HBMSizePerTileInGigabytes": str(self.memory_gib),
            "SetCommandStreamReceiver": "5", "UseAubStream": "0",  # drop command buffers
            "UseBindlessMode": "0",  # its heaps want memory of the card at start
        }  # fmt: skip


CARDS = {  # architectures: what `ocloc ids` says of bmg-g31 and bmg-g21
    "b70": Card("bmg", "0xe223", (20, 2, 0), (8, 4, 8), 32),  # Arc Pro B70: 32 Xe cores of 8 vector engines
    "b580": Card("bmg", "0xe20b", (20, 1, 4), (5, 4, 8), 12),
}


def environment(driver: Driver, card: Card, inherited: Mapping[str, str]) -> dict[str, str]:
    """Of a process that finds the card and no other SYCL device. Raises Unavailable (no C compiler)."""
    return {
        **inherited, **card.keys(), "ZE_ENABLE_ALT_DRIVERS": str(_shim(driver)),
        "ONEAPI_DEVICE_SELECTOR": "level_zero:gpu", "NEO_CACHE_PERSISTENT": "0",
    }  # fmt: skip


def python(driver: Driver, arguments: Sequence[str], also: Sequence[Path]) -> list[str]:
    """This Python, started with the driver's C library; `also`: folders with libraries behind it."""
    own = [Path(part) for part in (sysconfig.get_config_var("LIBDIR"),) if part]
    host = [Path("/lib/x86_64-linux-gnu"), Path("/usr/lib/x86_64-linux-gnu"), Path("/lib64"), Path("/usr/lib64")]
    return driver.started(
        Path(sys.executable), *arguments, also=[*also, *own, *(path for path in host if path.is_dir())]
    )


def _shim(driver: Driver) -> Path:
    """driver.c, compiled against this driver; the Level Zero loader takes it for Intel's library."""
    source = Path(__file__).with_name("driver.c")
    key = hashlib.sha256(source.read_bytes() + str(driver.root).encode()).hexdigest()[:12]
    target = cache.folder("intel-driver", f"shim-{key}") / "libze_null_card.so"
    if target.exists():
        return target
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        raise Unavailable("no C compiler (cc, gcc): apt-get install -y --no-install-recommends g++")
    unfinished = target.with_suffix(".new")
    command = [
        compiler, "-shared", "-fPIC", "-O1", "-x", "c", str(source), "-o", str(unfinished), f"-L{driver.libraries}",
        "-Wl,--no-as-needed", "-l:libze_intel_gpu.so.1", "-Wl,--allow-shlib-undefined", "-ldl",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{source.name} does not compile:\n{done.stderr[-1500:]}")
    unfinished.rename(target)
    return target
