"""The soak run: a short one on the card, and (without a card) that it sees what it looks for."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.cuda.decode.soak import Soak, main
from tests.cuda.decode.soak_cells import Cells
from tests.cuda.decode.soak_layers import VARIANTS, Layer, Variant
from tests.ops.table import relative_error
from xpu_moe import device
from xpu_moe.cpu import moe_fp8_block as cpu_fp8
from xpu_moe.cpu import moe_u4 as cpu_u4
from xpu_moe.cuda import compiler
from xpu_moe.cuda.decode import layout
from xpu_moe.formats.int4 import Int4MoeWeights

SMALL = (
    Variant(4, 128, 128, 4, 3, group=64, dtype="float16", scale="float32", wide_ids=True),
    Variant(8, 128, 128, 5, 2, "relu2_no_mul"),
)


def stand_in(fault=None):
    """A kernel on the CPU that is right, apart from what `fault(call number, layer, x, ids, out)` does afterwards."""
    count = 0

    def call(layer: Layer, arguments: tuple):
        x, scale, weights, ids, out = arguments

        def run() -> None:
            nonlocal count
            wide = x.float() if scale is None else x.float() * scale.repeat_interleave(128, 1)
            out.copy_(layer.reference(wide, weights.float(), ids.long()))
            if fault is not None:
                fault(count, layer, x, ids, out)
            count += 1

        return run

    return call


def soaked(fault=None, runs: int = 92):
    return Soak(3, SMALL, "cpu", stand_in(fault)).run(runs)


def test_a_right_kernel_passes_and_every_launch_is_counted():
    found = soaked(runs=200)  # two blocks with their graphs, and a part of the third
    assert found.good and found.runs == 200 and not found.mismatches
    assert all(0 < error < 5e-3 for error in found.worst_error.values())


def behind_out(count, layer, x, ids, out):
    if count == 40:
        torch.as_strided(out, (1,), (1,), out.storage_offset() + (out.shape[0] - 1) * out.stride(0) + out.shape[1])[
            0
        ] = 0


def before_out(count, layer, x, ids, out):
    if count == 40:
        torch.as_strided(out, (1,), (1,), out.storage_offset() - 1)[0] = 1


def into_x(count, layer, x, ids, out):
    if count == 40:
        x.view(torch.uint8)[-1, -1] ^= 1


def into_weights(count, layer, x, ids, out):
    if count == 40:
        layer.wholes[2][-1] = 0


@pytest.mark.parametrize("fault", (behind_out, before_out, into_x, into_weights))
def test_a_write_outside_is_seen(fault):
    found = soaked(fault)
    assert found.canaries_touched >= 1 and found.wrong == 0 and not found.good
    assert found.mismatches


def test_the_launch_that_wrote_behind_its_rows_is_named():
    assert soaked(behind_out).mismatches[0]["index"] == 40


def one_value(count, layer, x, ids, out):
    if count == 41:
        out[-1] = out[-1] * 1.5 + 0.01


def not_written(count, layer, x, ids, out):
    if count == 41:
        out[0, -1] = float("nan")


@pytest.mark.parametrize("fault", (one_value, not_written))
def test_a_wrong_result_is_seen_and_named(fault):
    found = soaked(fault)
    assert found.wrong >= 1 and found.canaries_touched == 0
    assert 41 in [told["index"] for told in found.mismatches]


def test_a_row_without_routes_has_to_be_exactly_0():
    def fault(count, layer, x, ids, out):
        dead = ((ids < 0) | (ids >= layer.variant.experts)).all(1)
        out[dead] = 1e-7

    found = soaked(fault)
    assert any(told["rows_not_0"] for told in found.mismatches)


def test_repeated_launches_have_to_agree_in_every_bit():
    def fault(count, layer, x, ids, out):
        out.view(torch.int16)[0, 0] ^= count & 1

    found = soaked(fault)
    assert any(told["rows_unlike_twin"] and told["error"] < 1e-2 for told in found.mismatches)


def test_no_card_is_an_answer(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"ok": False, "cannot": "no NVIDIA card: the kernels run on Hopper (sm_90)"}
    assert printed.err.startswith("soak: no NVIDIA card")


def test_a_launch_is_repeated_by_its_index():
    soak = Soak(3, SMALL, "cpu", stand_in(one_value))
    soak.block(0, soak.per_block, 40)  # the one alone is call 0, so place 40 is call 41
    assert [(told["index"], told["how"]) for told in soak.report.mismatches] == [(40, "eager")]


@pytest.mark.skipif(not compiler.available(), reason="neither NVRTC nor nvcc is installed here")
def test_the_backends_serve_every_layer_of_the_run():
    for variant in VARIANTS:
        for tokens in (1, 4, 5, 16, 17, 64):
            support = Layer.backend_of(variant).supports(variant.case(tokens))
            assert support.ok, f"{variant}, M {tokens}: {support.reason}"


@pytest.mark.parametrize("variant", VARIANTS[2:10], ids=str)
def test_the_reference_is_the_operators(variant):
    """Against float64, from the bytes that the kernel reads, on inputs as the run draws them."""
    layer = Layer(variant, 1, "cpu")
    cells = Cells(layer, np.random.default_rng(5), 10)
    cells.fill(11)
    slot = max(range(10), key=lambda i: (cells.cells[i].tokens <= 16, cells.cells[i].tokens))
    x, scale, weights, ids, _ = cells.arguments(slot)
    if variant.bits == 4:
        packed = Int4MoeWeights(
            *(t.clone() for t in layer.tensors), "u4", variant.group, layout=layout.NAME, gated=layer.gated
        )
        plain = layout.unpack(packed)
        truth = cpu_u4.reference(
            x, plain.w13, plain.w13_scale, plain.w2, plain.w2_scale, weights, ids, nibble="u4",
            group_size=variant.group, activation=variant.activation,
        )  # fmt: skip
    else:
        truth = cpu_fp8.reference(x, scale, *layer.tensors, weights, ids, activation=variant.activation)
    rows = (cells.of == slot).nonzero().squeeze(1)
    got = layer.reference(*(t[rows] for t in cells.inputs()))
    assert relative_error(got, truth) < 1e-5
    assert torch.isfinite(x.float()).all() and (scale is None or torch.isfinite(scale).all())


@pytest.mark.skipif(
    not torch.cuda.is_available() or device.architecture("cuda") != "sm_90", reason="needs a Hopper card (sm_90)"
)
def test_a_short_run_on_the_card():
    variants = (
        Variant(4, 256, 128, 8, 2),
        Variant(8, 256, 384, 16, 9),
        Variant(4, 128, 128, 4, 1, "relu2_no_mul", group=32, dtype="float16", scale="bfloat16", wide_ids=True),
    )
    found = Soak(1, variants).run(456)  # four blocks
    assert found.good, found.mismatches
    assert found.runs == 456
