"""`python -m xpu_moe.launch`: launch, or one of the subcommands found in this folder (`explain-log FILE`, …)."""

from __future__ import annotations

import sys

from xpu_moe import subcommands
from xpu_moe.launch.main import main

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in subcommands.found("xpu_moe.launch"):
        sys.exit(subcommands.run("xpu_moe.launch"))
    sys.exit(main(sys.argv[1:]))
