"""Builds SPIR-V with Intel's Level Zero driver, on the card that is not there; run by battlemage.py in a process.

in_the_driver.py LIBSYCL_FOLDER (KERNEL MODULE)...     prints {module: arguments of the kernel}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from xpu_moe.esimd.nullcard.child import started


def main(folder: str, *kernels: str) -> None:
    device, _ = started(Path(folder))
    loaded = device.library
    taken = {}
    for name, file in zip(kernels[::2], kernels[1::2]):
        module = loaded.module(device.queue, Path(file).read_bytes(), "")
        taken[file] = loaded.kernel_arguments(loaded.kernel(module, name))
    print(json.dumps(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
