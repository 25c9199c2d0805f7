"""Public operators, one a file, and the dispatcher. `contract` needs no torch; an operator's file does.

`ops.moe_u4` is the operator, and so is `ops.NAME` for every file NAME.py that holds a function NAME; names inside such
a file are reached by `from xpu_moe.ops.moe_u4 import …`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from xpu_moe.ops.contract import Backend, Case, NoBackend, Selection, Support, explain, select

if TYPE_CHECKING:
    from xpu_moe.ops.moe_u4 import moe_u4 as moe_u4
    from xpu_moe.ops.route_sigmoid_topk import route_sigmoid_topk as route_sigmoid_topk

__all__ = ["Backend", "Case", "NoBackend", "Selection", "Support", "explain", "select"]


class _Operators(ModuleType):
    """The import system binds a submodule to its package; here the operator of the same name is bound instead."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType):
            value = getattr(value, name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{__name__}.{name}")
        return getattr(module, name, module)


sys.modules[__name__].__class__ = _Operators
