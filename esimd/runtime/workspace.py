"""A caller-owned workspace that only grows and never frees: a captured graph must not see a freed buffer."""

from __future__ import annotations

import torch


class GrowingDuringCapture(RuntimeError):
    """The workspace had to grow while a graph is being captured."""


class Workspace:
    """One uint8 buffer for a device, shared by layers that run one after the other.

    When it grows, the old buffer is kept for the life of the Workspace, because a graph captured before still writes
    to it. `reserve` the largest need before capturing; `get` inside a capture refuses to allocate.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._buffers: list[torch.Tensor] = []

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """All that were ever handed out, the current one last."""
        return tuple(self._buffers)

    def reserve(self, size: int) -> None:
        """Make the buffer at least `size` bytes large now."""
        self.get(size)

    def get(self, size: int) -> torch.Tensor:
        """The current buffer, at least `size` bytes; larger than asked for where it is so already."""
        if self._buffers and self._buffers[-1].numel() >= size:
            return self._buffers[-1]
        if _capturing(self.device):
            have = self._buffers[-1].numel() if self._buffers else 0
            raise GrowingDuringCapture(
                f"workspace: got {have} bytes, wanted {size}, while a graph is being captured: reserve the largest "
                "need first"
            )
        # Doubling keeps the sum of the kept buffers below twice the last one.
        grown = max(size, 2 * self._buffers[-1].numel()) if self._buffers else size
        self._buffers.append(torch.empty(grown, dtype=torch.uint8, device=self.device))
        return self._buffers[-1]


def _capturing(device: torch.device) -> bool:
    runtime = {"cuda": torch.cuda, "xpu": getattr(torch, "xpu", None)}.get(device.type)
    ask = getattr(runtime, "is_current_stream_capturing", None)
    return bool(ask and ask())
