"""Bytes by the counter of the host run: weights and scales once, whoever shares them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.esimd.kernels.cases import TP4, Shape, inputs
from xpu_moe.esimd.host import emulate

pytestmark = pytest.mark.slow
WEIGHTS = ("w13", "w13_scale", "w2", "w2_scale")


def per_expert(got: emulate.Emulated, name: str, counts: str = "loads") -> np.ndarray:
    watch = got.watches[name]
    return getattr(watch, counts).reshape(watch.array.shape[0], -1)


def test_m1_tp4_reads_the_floor():
    """up + down at M=1 <= 1.02 x the weights and scales of top_k experts, each byte once, no other expert touched."""
    arguments = inputs(TP4, 1, torch.float16)
    got = emulate.moe_u4(*arguments.values(), group_size=128)
    assert got.floor_bytes == 8 * 1_824_768  # the figure of the model's arithmetic
    assert got.traffic_ratio <= 1.02
    used = set(arguments["topk_ids"].flatten().tolist())
    for name in WEIGHTS:
        for expert, loads in enumerate(per_expert(got, name)):
            assert (loads.min(), loads.max()) == ((1, 1) if expert in used else (0, 0)), (name, expert)
    # what is read besides them, once from memory and then from a cache: x, the hidden vector
    others = sum(got.watches[name].distinct for name in ("x", "hidden"))
    assert (got.weight_bytes + others) / got.floor_bytes <= 1.02


@pytest.mark.parametrize("tokens", [2, 3, 4])
def test_shared_experts_are_read_once(tokens):
    """Half of the picks are shared; loaded bytes stay at the distinct experts' (<= 1.05 x)."""
    shape = Shape("shared", 384, 128, hidden=1024, experts=32, top_k=8, pool=32)
    arguments = inputs(shape, tokens, torch.float16)
    arguments["topk_ids"][1:, :4] = arguments["topk_ids"][0, :4]
    for row in arguments["topk_ids"]:  # keep each token's ids distinct
        free = [e for e in range(32) if e not in row[:4].tolist()]
        row[4:] = torch.tensor(free)[
            torch.randperm(len(free), generator=torch.Generator().manual_seed(int(row[4])))[:4]
        ]
    distinct = arguments["topk_ids"].unique().numel()
    assert distinct < tokens * 8
    got = emulate.moe_u4(*arguments.values(), group_size=128)
    assert got.floor_bytes == distinct * sum(arguments[n][0].nbytes for n in WEIGHTS)
    assert got.traffic_ratio <= 1.05
    assert all(got.watches[name].loads.max() == 1 for name in WEIGHTS)


@pytest.mark.parametrize("tokens", [1, 2, 4, 7])
def test_output_and_hidden_are_written_once(tokens):
    shape = Shape("small", 128, 128, hidden=512, experts=16, top_k=4, pool=16)
    got = emulate.moe_u4(*inputs(shape, tokens, torch.float16).values(), group_size=128)
    for name in ("out", "hidden"):
        stores = got.watches[name].stores
        assert (stores.min(), stores.max()) == (1, 1), name
    assert not any(got.watches[name].stores.any() for name in (*WEIGHTS, "x"))


def test_weights_of_an_id_out_of_range_are_not_read():
    shape = Shape("small", 128, 128, hidden=512, experts=16, top_k=4, pool=16)
    arguments = inputs(shape, 1, torch.float16)
    arguments["topk_ids"][0, :3] = torch.tensor([-1, 16, 2**31 - 1])
    got = emulate.moe_u4(*arguments.values(), group_size=128)
    assert got.weight_bytes == got.floor_bytes == sum(arguments[n][0].nbytes for n in WEIGHTS)
