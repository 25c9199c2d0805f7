"""What a measuring tool says: the names of `xpu_moe.streams` that the measuring tools use."""

from xpu_moe.streams import BAD_ARGUMENT, CLOSED, LOST, emit, refuse, warn

__all__ = ["BAD_ARGUMENT", "CLOSED", "LOST", "emit", "refuse", "warn"]
