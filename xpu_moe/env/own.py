"""Our own variables, and the names that the field's serve scripts use already."""

from __future__ import annotations

from typing import Final

from xpu_moe.env.variable import Variable

_HERE: Final = "xpu_moe"

VARIABLES = (
    Variable("XPU_MOE_EXPLAIN", "bool", "Print one line for each new case that the dispatcher decides.", _HERE, "0"),
    Variable("XPU_MOE_CHECK", "bool", "Check expert ids on the device at every call: synchronises.", _HERE, "0"),
    Variable(
        "XPU_MOE_BACKEND",
        "str",
        "Ask one backend by name, of the operators that have it; an error where it cannot serve.",
        _HERE,
    ),
    Variable("XPU_MOE_CACHE", "path", "Folder of compiled kernels and tool environments (mode 0700).", _HERE),
    Variable("XDG_CACHE_HOME", "path", "Root of the user's caches (XDG base directories).", "system"),
    Variable("XPU_MOE_TRACE_KERNELS", "bool", "Time every submitted kernel, print JSON at exit.", _HERE, "0"),
)
