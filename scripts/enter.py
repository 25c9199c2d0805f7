"""Puts this checkout on the path and calls the part that was asked for: `serve …` or `test …`.

Standard library only: it runs in the system's Python, before any environment exists.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    sys.path.insert(0, str(ROOT))
    what, *argv = sys.argv[1:]
    if what == "serve":
        from xpu_moe.launch.bootstrap import start

        return start(argv, ROOT)
    sys.path.insert(0, str(ROOT / "scripts"))
    from testing import run  # type: ignore[import-not-found]

    return int(run(argv, ROOT))


if __name__ == "__main__":
    sys.exit(main())
