"""The child of `--deep`: prints one JSON object {libraries, kind, peer_access, gemm, failed} as its last line.

`failed` {torch, cards}: why an installed torch did not import, and what using the cards ended with.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

from xpu_moe.doctor.collect.libraries import WANTED, row

_SIZE = 256


def main() -> int:
    """Ask everything that can be asked; each part is independent of the others."""
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        if importlib.util.find_spec("torch") is not None:
            found |= _torch()
        with contextlib.suppress(Exception):
            found["libraries"] = _loaded()
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _torch() -> dict[str, Any]:
    try:
        import torch

        torch.float16  # noqa: B018 - a folder that an uninstallation left imports as well
    except Exception as error:  # half an installation fails in any way
        return {"failed": {"torch": _told(error)}}
    try:
        return _cards(torch)
    except Exception as error:
        return {"failed": {"cards": _told(error)}}


def _told(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _cards(torch: Any) -> dict[str, Any]:
    kind = "xpu" if getattr(torch, "xpu", None) and torch.xpu.is_available() else "cuda"
    runtime = getattr(torch, kind)
    if not runtime.is_available():
        return {}
    count = runtime.device_count()
    ask = getattr(runtime, "can_device_access_peer", None)
    peers = [[a == b or bool(ask and ask(a, b)) for b in range(count)] for a in range(count)] if ask else None
    return {"kind": kind, "peer_access": peers, "gemm": [_exact(torch, f"{kind}:{index}") for index in range(count)]}


def _exact(torch: Any, device: str) -> bool:
    """A product of small whole numbers in half precision: every partial sum is exact, so the answer must be too."""
    left = torch.arange(_SIZE * _SIZE, device=device).reshape(_SIZE, _SIZE).remainder(3).sub(1).half()
    right = torch.arange(_SIZE * _SIZE, device=device).reshape(_SIZE, _SIZE).remainder(2).half()
    want = (left.cpu().double() @ right.cpu().double()).half()
    return bool(torch.equal((left @ right).cpu(), want))


def _loaded() -> list[dict[str, Any]]:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    files = sorted({line.split(None, 5)[5] for line in maps.splitlines() if line.count("/")})
    return [row(Path(file)) for file in files if Path(file).name.split(".so")[0] in WANTED]


if __name__ == "__main__":
    sys.exit(main())
