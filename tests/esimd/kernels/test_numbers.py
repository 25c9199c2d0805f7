"""The ESIMD source on the host against float64, at MiniMax's shapes and at small ones."""

from __future__ import annotations

import pytest
import torch

from tests.esimd.kernels.cases import TOLERANCE, TP1, TP2, TP4, TP8_G32, TP8_G64, Shape, error, inputs, truth
from xpu_moe.esimd.host import emulate

HALF, BF16 = torch.float16, torch.bfloat16


def run_and_compare(shape, tokens, dtype, *, nibble="u4", activation="silu", count=False, **changes):
    arguments = inputs(shape, tokens, dtype, activation=activation, **changes)
    wanted = truth(**arguments, nibble=nibble, group_size=shape.group, activation=activation)
    got = emulate.moe_u4(*arguments.values(), nibble=nibble, group_size=shape.group, activation=activation, count=count)
    assert error(torch.from_numpy(got.output), wanted) <= TOLERANCE[dtype]
    return got


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "tokens", "dtype"),
    [(TP4, 1, HALF), (TP4, 3, HALF), (TP4, 4, BF16), (TP8_G64, 1, BF16), (TP8_G32, 2, HALF)],
    ids=str,
)
def test_minimax_shapes(shape, tokens, dtype):
    run_and_compare(shape, tokens, dtype)


# both dtypes where the kernels are first class, one of them further up
DECODE = [(tokens, dtype) for tokens in (1, 2, 3, 4) for dtype in (HALF, BF16)]


@pytest.mark.soak
@pytest.mark.parametrize(("tokens", "dtype"), [*DECODE, (8, HALF), (16, BF16), (64, HALF)], ids=str)
@pytest.mark.parametrize("shape", [TP4, TP8_G64, TP8_G32], ids=str)
def test_minimax_shapes_all(shape, tokens, dtype):
    run_and_compare(shape, tokens, dtype)


ONE_EACH = [(1, BF16), (2, HALF), (3, BF16), (4, HALF), (8, BF16), (16, HALF)]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("shape", "tokens", "dtype"),
    [*((shape, *row) for shape in (TP1, TP2) for row in ONE_EACH), (TP2, 64, BF16)],
    ids=str,
)
def test_minimax_wide_shapes(shape, tokens, dtype):
    run_and_compare(shape, tokens, dtype)


# every template instance and every run-time branch, at sizes that take milliseconds
SMALL = [
    Shape("wide-steps", 128, 128, hidden=512, experts=16, top_k=4, pool=16),
    Shape("one-group-steps", 384, 128, hidden=384, experts=16, top_k=4, pool=16),
    Shape("g64", 128, 64, hidden=256, experts=16, top_k=3, pool=16),
    Shape("g64-narrow", 192, 64, hidden=320, experts=16, top_k=5, pool=16),
    Shape("g32", 256, 32, hidden=256, experts=16, top_k=16, pool=16),
    Shape("g32-narrow", 96, 32, hidden=160, experts=8, top_k=1, pool=8),
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_small_shapes(shape, dtype):
    for tokens in (0, 1, 2, 5, 64):
        if tokens:
            run_and_compare(shape, tokens, dtype)
        else:
            none = inputs(shape, 1, dtype)
            none = {k: v[:0] if k in ("x", "topk_weights", "topk_ids") else v for k, v in none.items()}
            assert emulate.moe_u4(*none.values(), group_size=shape.group).output.shape == (0, shape.hidden)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["silu", "relu2", "relu2_no_mul", "silu_no_mul"])
@pytest.mark.parametrize("nibble", ["u4", "s4"])
def test_activations_and_nibbles(activation, nibble):
    for tokens, dtype in ((1, HALF), (3, BF16)):
        run_and_compare(SMALL[0], tokens, dtype, nibble=nibble, activation=activation)


@pytest.mark.slow
def test_every_dtype_of_ids_and_route_weights():
    for weights_dtype in (torch.float32, HALF, BF16):
        for ids_dtype in (torch.int32, torch.int64):
            for tokens in (1, 4):
                run_and_compare(SMALL[0], tokens, HALF, weights_dtype=weights_dtype, ids_dtype=ids_dtype)


@pytest.mark.slow
def test_bfloat16_scales():
    for tokens in (1, 4):
        arguments = inputs(SMALL[0], tokens, BF16)
        arguments |= {k: arguments[k].to(BF16) for k in ("w13_scale", "w2_scale")}
        got = emulate.moe_u4(*arguments.values(), group_size=128)
        assert error(torch.from_numpy(got.output), truth(**arguments, nibble="u4", group_size=128)) <= TOLERANCE[BF16]


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 4])
def test_route_weights_are_read_in_float32(tokens):
    """A cast of the route weights to fp16 shows in the output: ours is the result without it."""
    arguments = inputs(SMALL[0], tokens, HALF)
    arguments["topk_weights"] *= 1e-7  # fp16 has one or two values there
    arguments["w13_scale"] *= 10
    arguments["w2_scale"] *= 1000
    rounded = arguments | {"topk_weights": arguments["topk_weights"].half()}
    wanted = truth(**arguments, nibble="u4", group_size=128)
    got = torch.from_numpy(emulate.moe_u4(*arguments.values(), group_size=128).output)
    cast = torch.from_numpy(emulate.moe_u4(*rounded.values(), group_size=128).output)
    assert error(got, wanted) <= TOLERANCE[HALF]
    assert not torch.equal(got, cast)
    assert error(cast, wanted) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 4])
def test_ids_out_of_range_weigh_nothing(tokens):
    arguments = inputs(SMALL[0], tokens, HALF, ids_dtype=torch.int64)
    arguments["topk_ids"][0, 1] = -1
    arguments["topk_ids"][tokens - 1, 2] = 16
    arguments["topk_ids"][tokens - 1, 3] = 1 << 33  # its low word is a valid id
    wanted = truth(**arguments, nibble="u4", group_size=128)
    got = emulate.moe_u4(*arguments.values(), group_size=128)
    assert error(torch.from_numpy(got.output), wanted) <= TOLERANCE[HALF]
    arguments["topk_ids"][:] = -1
    assert not emulate.moe_u4(*arguments.values(), group_size=128).output.any()


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 4])
def test_an_expert_listed_twice_counts_twice(tokens):
    arguments = inputs(SMALL[0], tokens, HALF)
    arguments["topk_ids"][:, 2] = arguments["topk_ids"][:, 0]
    wanted = truth(**arguments, nibble="u4", group_size=128)
    got = emulate.moe_u4(*arguments.values(), group_size=128)
    assert error(torch.from_numpy(got.output), wanted) <= TOLERANCE[HALF]


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 3, 6])
def test_rows_of_x_and_out_may_lie_apart(tokens):
    """What lies between the rows is neither read nor written."""
    arguments = inputs(SMALL[0], tokens, HALF)
    close = emulate.moe_u4(*arguments.values(), group_size=128)
    apart = emulate.moe_u4(*arguments.values(), group_size=128, row_gap=24)
    assert (apart.bits == close.bits).all()
    for name, counts in (("x", "loads"), ("out", "stores")):
        touched = getattr(apart.watches[name], counts).reshape(tokens, -1)
        assert touched[:, : 2 * SMALL[0].hidden].all() and not touched[:, 2 * SMALL[0].hidden :].any(), name


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 4])
def test_schedules_do_not_change_a_bit(tokens):
    """Another order of work-groups and of the threads in a group gives the same bits."""
    arguments = inputs(SMALL[1], tokens, HALF)
    runs = [emulate.moe_u4(*arguments.values(), group_size=128, count=False, seed=s).bits for s in (0, 1, 2, 3)]
    assert all((run == runs[0]).all() for run in runs)


def test_refuses_what_the_kernels_cannot_serve():
    arguments = inputs(Shape("TP8", 192, 64, hidden=128, experts=2, top_k=1, pool=2), 1, HALF)
    with pytest.raises(ValueError, match="intermediate_size 192 is not a multiple of group_size 128"):
        emulate.moe_u4(*arguments.values(), group_size=128)
