"""What a call hands to the kernel: pointers, strides and sizes in the kernel's order. No card is needed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from xpu_moe.cuda import jit
from xpu_moe.cuda.decode import launch
from xpu_moe.cuda.decode.plan import NoPlan, Shape, plan
from xpu_moe.ops.checks import BadArgument

SHAPE = Shape(4, 256, 128, 8, 2, 128, "silu", True, "bfloat16", "float16", "float32", False)


class Kernel:
    def __init__(self):
        self.calls = []

    def launch(self, grid, block, *arguments, **keywords):
        self.calls.append((grid, block, arguments, keywords))


@pytest.fixture
def kernel(monkeypatch):
    fake, made = Kernel(), []

    def load(shape, size, device):
        made.append(size)
        return plan(shape, size, 132), fake, torch.zeros(16, dtype=torch.uint8)

    monkeypatch.setattr(launch, "_kernel", load)
    monkeypatch.setattr(jit, "stream", lambda device: 77)
    fake.made = made
    return fake


def weights():
    return tuple(torch.zeros(8, n, 4) for n in (3, 4, 5, 6))


def inputs(tokens: int):
    x = torch.zeros(tokens, 512, dtype=torch.bfloat16)[:, :256]
    return x, torch.zeros(tokens, 2), torch.zeros(tokens, 2, dtype=torch.int32), torch.zeros(tokens, 300)[:, :256]


def test_the_arguments_stand_in_the_kernels_order(kernel):
    layer = weights()
    bound = launch.Bound(SHAPE, layer)
    x, route_weights, ids, out = inputs(3)
    scale = torch.zeros(2, 8).t()[:3]
    assert bound(x, scale, route_weights, ids, out, programmatic=False) is out
    (grid, block, arguments, keywords), chosen = kernel.calls[0], plan(SHAPE, 4, 132)
    assert grid == (132,) and block == (chosen.threads,)
    assert len(arguments) == len(launch._SIGNATURE)
    assert arguments[:2] == (x.data_ptr(), scale.data_ptr())
    assert arguments[2:6] == tuple(tensor.data_ptr() for tensor in layer)
    assert arguments[6:9] == (ids.data_ptr(), route_weights.data_ptr(), out.data_ptr())
    assert arguments[10:] == (chosen.state_half, 3, 512, 1, 8, 300)
    assert keywords == {"stream": 77, "shared": chosen.shared_bytes, "programmatic": False}


def test_a_variant_is_looked_up_once_a_bucket(kernel):
    bound = launch.Bound(SHAPE, weights())
    for tokens in (1, 4, 5, 16, 17, 64, 2):
        bound(inputs(tokens)[0], None, *inputs(tokens)[1:])
    assert kernel.made == [1, 4, 16, 64] and len(kernel.calls) == 7


def test_rows_that_are_not_16_byte_aligned_are_copied(kernel):
    _, route_weights, ids, out = inputs(2)
    odd = torch.zeros(2, 257, dtype=torch.bfloat16)[:, 1:]
    launch.Bound(SHAPE, weights())(odd, None, route_weights, ids, out)
    arguments = kernel.calls[0][2]
    assert arguments[0] != odd.data_ptr() and arguments[0] % 16 == 0 and arguments[12] == 256


@pytest.mark.parametrize("tokens", (1, 2))
def test_contiguous_rows_that_begin_askew_are_copied(kernel, tokens):
    _, route_weights, ids, out = inputs(tokens)
    odd = torch.arange(1 + tokens * 256, dtype=torch.bfloat16)[1:].view(tokens, 256)
    assert odd.is_contiguous() and odd.data_ptr() % 16 == 2
    launch.Bound(SHAPE, weights())(odd, None, route_weights, ids, out)
    assert kernel.calls[0][2][0] % 16 == 0


def test_weights_that_begin_askew_are_refused():
    w13, *rest = weights()
    odd = torch.zeros(8 * 3 * 4 + 1)[1:].view(8, 3, 4)
    with pytest.raises(BadArgument, match=r"w13.data_ptr\(\) % 16: got 4, wanted 0"):
        launch.Bound(SHAPE, (odd, *rest))
    scale = torch.zeros(8 * 4 * 4 + 1)[1:].view(8, 4, 4)
    launch.Bound(dataclasses.replace(SHAPE, bits=8), (w13, scale, *rest[1:]))  # FP8 scales are read one by one


def test_the_first_call_of_a_shape_is_refused_inside_a_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(jit, "load", lambda *args: pytest.fail("loaded while capturing"))
    with pytest.raises(launch.CaptureError, match="before capturing"):
        launch._kernel(SHAPE, 4, 0)


def test_warming_leaves_out_sizes_that_no_variant_has(monkeypatch):
    made = []

    def kernel(shape, size, device):
        if size == 16:
            raise NoPlan("too wide")
        made.append(size)

    monkeypatch.setattr(launch, "_kernel", kernel)
    launch.warm(SHAPE, 64, 0)
    launch.warm(SHAPE, 16, 0)
    assert made == [1, 4, 64, 1, 4]
    monkeypatch.setattr(launch, "BUCKETS", (16, 64))
    with pytest.raises(NoPlan):
        launch.warm(SHAPE, 1, 0)


def test_no_tokens_launch_nothing_and_strided_routes_are_refused(kernel):
    layer = weights()
    x, route_weights, ids, out = inputs(0)
    assert launch.run(SHAPE, x, None, layer, route_weights, ids, out) is out
    assert not kernel.calls
    x, route_weights, ids, out = inputs(4)
    with pytest.raises(BadArgument, match="topk_ids: got"):
        launch.run(SHAPE, x, None, layer, route_weights, torch.zeros(4, 4, dtype=torch.int32)[:, :2], out)
    with pytest.raises(BadArgument, match="w13: got strides"):
        launch.Bound(SHAPE, (torch.zeros(8, 3, 8)[:, :, :4], *layer[1:]))
