"""The `torch.library` namespace `xpu_moe`: one fragment that every operator file defines its schemas in."""

from __future__ import annotations

from collections.abc import Callable

import torch

LIBRARY = torch.library.Library("xpu_moe", "FRAGMENT")


def define(
    schema: str, fake: Callable, implementation: Callable, keys: tuple[str, ...] = ("CPU", "CUDA", "XPU")
) -> None:
    """Define one operator: its schema, its fake (shape) implementation, and the implementation for `keys`.

    A device room may register its own kernel for a key (C++ on XPU): it then passes `keys` without that one.
    """
    name = schema.split("(", 1)[0]
    LIBRARY.define(schema)
    torch.library.register_fake(f"xpu_moe::{name}", fake, lib=LIBRARY)
    for key in keys:
        LIBRARY.impl(name, implementation, key)
