"""Intel-XPU-first runtime toolkit for serving MiniMax-M2.x mixtures of experts with vLLM.

Importing this package imports neither torch nor vLLM; rooms load on first use.
"""

from xpu_moe import interrupt
from xpu_moe.version import __version__

interrupt.of_a_tool()  # here, as what a tool imports takes most of its start

__all__ = ["__version__"]
