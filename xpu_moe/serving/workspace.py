"""Device buffers that outlive graph captures.

A captured graph keeps the addresses that it saw, so a buffer that was handed out is never freed or moved: layers that
need more get a larger one, and earlier layers keep theirs. Layers run one after the other, so they share.
"""

from __future__ import annotations

import torch

_buffers: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}


def shared(elements: int, device: torch.device, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """A flat buffer of `elements`, the same for every layer that asks for no more than the largest one so far."""
    key = (device, dtype)
    if key not in _buffers or _buffers[key].numel() < elements:
        _buffers[key] = torch.empty(elements, dtype=dtype, device=device)
    return _buffers[key][:elements]
