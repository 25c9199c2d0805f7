"""What the driver and our own checks refuse on the card that is not there; run by test_null_card.py in a process.

A module that is cut off or has unknown instructions is not among them: it takes the driver's process down, which is why
`Room.read` holds every module against its manifest first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from xpu_moe.esimd.kernels import launch
from xpu_moe.esimd.nullcard.child import started
from xpu_moe.esimd.runtime.room import ESIMD


def main(folder: str) -> None:
    device, running = started(Path(folder))
    loaded, queue = device.library, device.queue
    name, options = "qk_rms_f16", ESIMD.options
    spirv, kernel = ESIMD.read(name), launch.qk_partial("float16", 1).kernel
    answers = {}

    def told(what: str, call: Callable[[], object]) -> None:
        try:
            call()
            answers[what] = "fine"
        except Exception as error:
            answers[what] = f"{type(error).__name__}: {error}"

    told("a right module", lambda: loaded.kernel(loaded.module(queue, spirv, options), f"__sycl_kernel_{kernel}"))
    told("no SPIR-V", lambda: loaded.module(queue, b"hello world12345", options))
    told("an option that the compiler does not know", lambda: loaded.module(queue, spirv, f"{options} -no-such-option"))
    told("a kernel that the module does not have", lambda: loaded.kernel(loaded.module(queue, spirv, options), "other"))
    told("a kernel with another number of arguments", lambda: running.kernel(ESIMD, name, kernel, 3))
    told("32 GiB and more on a card of 32", lambda: loaded.alloc(queue, 40 << 30))
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
