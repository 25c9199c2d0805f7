"""Which Triton is installed and what it compiles for. Asking loads Triton, importing this does not."""

from __future__ import annotations

import importlib.util
from functools import cache

from xpu_moe.ops.contract import Case


@cache
def triton_version() -> str | None:
    """Triton's version, None where it is not installed (or is the empty distribution of CPU builds)."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        import triton
        import triton.language
    except ImportError:
        return None
    return getattr(triton, "__version__", None)


@cache
def vendors() -> tuple[str, ...]:
    """The compilers that this Triton carries."""
    import triton.backends

    return tuple(triton.backends.backends)


def refusal(case: Case) -> str:
    """What stops every kernel of this room on the case's device; "" where nothing does."""
    if triton_version() is None:
        return "Triton is not installed"
    if case.device == "xpu" and "intel" not in vendors():
        return f"this Triton compiles for {' and '.join(vendors()) or 'nothing'}: XPU needs Intel's build"
    if case.device == "cuda" and case.architecture and int(case.architecture.removeprefix("sm_")) < 80:
        return f"architecture {case.architecture}: Triton needs sm_80 or later for bf16"
    return ""
