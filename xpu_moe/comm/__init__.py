"""Process groups, all-reduce forms, timeouts.

Importing the room needs no torch; a group or a collective does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xpu_moe.comm.group import Communicator, adopt, close, init, lookup
    from xpu_moe.comm.peers import map_peers, unmap_peers
    from xpu_moe.ops.all_reduce import all_reduce

__all__ = ["Communicator", "adopt", "all_reduce", "close", "init", "lookup", "map_peers", "unmap_peers"]


def __getattr__(name: str) -> Any:
    if name == "all_reduce":
        from xpu_moe.ops.all_reduce import all_reduce

        return all_reduce
    if name in ("map_peers", "unmap_peers"):
        from xpu_moe.comm import peers

        return getattr(peers, name)
    if name in __all__:
        from xpu_moe.comm import group

        return getattr(group, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
