"""Launching the decode kernels: the variant for a call, the hand-off state of a device, the arguments.

The state (a launch counter and two buffers through which phase 1 hands h to phase 2) must start as zeros and is left
ready by every launch, so it is not a caller's scratch buffer: it belongs to the device, one for each size.
Calls on a device have to follow each other in stream order, as a model's layers do.
"""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

import torch

from xpu_moe.cuda import jit
from xpu_moe.cuda.decode.plan import BUCKETS, NoPlan, Plan, Shape, bucket, plan
from xpu_moe.ops import checks

_HERE = Path(__file__).parent
_SOURCES = {4: "moe_u4.cu", 8: "moe_fp8_block.cu"}
_HEADERS = (
    "shape.cuh", "u4.cuh", "u4_bytes.cuh", "u4_few.cuh", "u4_one.cuh", "fp8_block.cuh", "fp8_one.cuh", "inputs.cuh",
    "state.cuh", "work.cuh", "activate.cuh", "spread.cuh", "one_token.cuh", "routes.cuh", "block.cuh", "hidden.cuh",
    "units.cuh", "slots.cuh", "kernel.cuh",
)  # fmt: skip
_SIGNATURE = "PPPPPPPPPPQiiiii"
_states: dict[tuple[int, int], torch.Tensor] = {}


class CaptureError(RuntimeError):
    """A CUDA graph is being captured and the variant for this call is not loaded yet."""


def unit(chosen: Plan, *, trace: bool = False) -> jit.Program:
    """The translation unit of a variant; `trace`: the one that leaves clock stamps in a longer state (state.cuh)."""
    headers = [jit.INSTRUCTIONS, *(_HERE / name for name in _HEADERS)]
    defines = chosen.defines() | ({"TRACE": 1} if trace else {})
    return jit.program(_HERE / _SOURCES[chosen.shape.bits], defines, headers=headers)


@cache
def _blocks(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _kernel(shape: Shape, size: int, device: int) -> tuple[Plan, jit.Kernel, torch.Tensor]:
    if torch.cuda.is_current_stream_capturing():  # loading waits for the card, which would break the capture
        raise CaptureError(
            "moe decode: first call inside a graph capture; call `prepare`, or the operator once, before capturing"
        )
    chosen = plan(shape, size, _blocks(device))
    kernel = jit.load(unit(chosen), "moe_decode", _SIGNATURE, device)
    if kernel.blocks_per_multiprocessor(chosen.threads, chosen.shared_bytes) < 1:
        raise jit.DriverError(f"moe_decode: {chosen.shared_bytes} bytes of shared memory do not fit a multiprocessor")
    return chosen, kernel, _state(chosen.state_bytes, device)


def _state(size: int, device: int) -> torch.Tensor:
    if (device, size) not in _states:
        _states[device, size] = torch.zeros(size, dtype=torch.uint8, device=f"cuda:{device}")
        torch.cuda.synchronize(device)
    return _states[device, size]


def warm(shape: Shape, tokens: int, device: int) -> None:
    """Compile and load the variants for up to `tokens` tokens and make their state. NoPlan: there is none for one."""
    for size in BUCKETS:
        if size == BUCKETS[0]:
            _kernel(shape, size, device)
        elif tokens > BUCKETS[BUCKETS.index(size) - 1]:
            with contextlib.suppress(NoPlan):  # `supports` refuses as many tokens
                _kernel(shape, size, device)


class Bound:
    """A layer's weights bound to the kernels: what is left to do in a call is a few checks and one launch.

    `weights` are (w13, w13_scale, w2, w2_scale) in the order that the kernel reads, contiguous on one card and on 16
    bytes (FP8 scales: anywhere), else BadArgument. For eager decoding without an operator's checks; under a graph there
    is nothing to gain.
    """

    def __init__(self, shape: Shape, weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
        for name, tensor in zip(("w13", "w13_scale", "w2", "w2_scale"), weights):
            checks.contiguous(name, tensor)
            if shape.bits == 4 or not name.endswith("scale"):  # the bulk copies' unit
                checks.require(tensor.data_ptr() % 16 == 0, f"{name}.data_ptr() % 16", tensor.data_ptr() % 16, 0)
        self.shape, self.weights = shape, weights
        self.device = weights[0].device.index
        self._pointers = tuple(tensor.data_ptr() for tensor in weights)
        self._kernels: dict[int, tuple[Plan, jit.Kernel, torch.Tensor]] = {}

    def __call__(
        self,
        x: torch.Tensor,
        x_scale: torch.Tensor | None,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        out: torch.Tensor,
        *,
        programmatic: bool = True,
    ) -> torch.Tensor:
        """One launch on torch's current stream. x rows may be strided by whole 16 bytes (else x is copied)."""
        tokens = x.shape[0]
        if tokens == 0:
            return out
        if self.device is not None and torch.cuda.current_device() != self.device:
            with torch.cuda.device(self.device):
                return self(x, x_scale, topk_weights, topk_ids, out, programmatic=programmatic)
        if x.stride(1) != 1 or x.stride(0) * x.element_size() % 16 or x.data_ptr() % 16:
            x = x.clone(memory_format=torch.contiguous_format)  # `contiguous` gives back a contiguous one that is askew
        for name, tensor in (("topk_weights", topk_weights), ("topk_ids", topk_ids)):
            checks.contiguous(name, tensor)
        checks.require(out.stride(1) == 1, "out.stride(1)", out.stride(1), 1)
        size = bucket(tokens)
        if size not in self._kernels:
            self._kernels[size] = _kernel(self.shape, size, self.device)
        chosen, kernel, state = self._kernels[size]
        scale = (0, 0, 0) if x_scale is None else (x_scale.data_ptr(), x_scale.stride(0), x_scale.stride(1))
        kernel.launch(
            (chosen.blocks,), (chosen.threads,),
            x.data_ptr(), scale[0], *self._pointers, topk_ids.data_ptr(), topk_weights.data_ptr(), out.data_ptr(),
            state.data_ptr(), chosen.state_half, tokens, x.stride(0), scale[1], scale[2], out.stride(0),
            stream=jit.stream(self.device), shared=chosen.shared_bytes, programmatic=programmatic,
        )  # fmt: skip
        return out


def run(
    shape: Shape,
    x: torch.Tensor,
    x_scale: torch.Tensor | None,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    out: torch.Tensor,
    *,
    programmatic: bool = True,
) -> torch.Tensor:
    """One launch for weights that are not bound."""
    if x.shape[0] == 0:
        return out
    return Bound(shape, weights)(x, x_scale, topk_weights, topk_ids, out, programmatic=programmatic)
