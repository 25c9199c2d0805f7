"""`python -m xpu_moe.esimd`: lists the subcommands found in this folder, or runs one."""

import sys

from xpu_moe.subcommands import run

sys.exit(run("xpu_moe.esimd"))
